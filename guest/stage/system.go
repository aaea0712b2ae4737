package stage

import "golang.org/x/sys/unix"

// System is the stage of a dsec-init that works in a whole system, which has its mounts already: nothing is made, and there
// is nothing to enter.
func System() (*Stage, error) {
	s := &Stage{below: -1}
	var err error
	if s.Pts, err = unix.Open("/dev/pts", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, wrap("open /dev/pts", err)
	}
	if s.Null, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return nil, wrap("open /dev/null", err)
	}
	_ = loopbackUp() // systems do it themselves, some later
	return s, nil
}

// SetHostname names the system that this process works in.
func SetHostname(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return wrap("set host name", err)
	}
	return nil
}
