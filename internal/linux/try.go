package linux

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// TryFilesystem tells whether the kernel knows a file system, loading its module if there is one.
func TryFilesystem(name string) error {
	fd, err := unix.Fsopen(name, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// TryGroupMoves tells whether the kernel takes a control-group hierarchy of the favordynmods kind; none is made.
func TryGroupMoves() error {
	fd, err := unix.Fsopen("cgroup", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.FsconfigSetFlag(fd, "favordynmods")
}

// TryIdmappedMount makes a detached idmapped mount of a tmpfs and lets it go.
func TryIdmappedMount() error {
	m, err := NewMount("tmpfs", NoDev)
	if err != nil {
		return err
	}
	defer m.Close()
	// A process in a user namespace, for as long as it takes to open the namespace.
	cmd := exec.Command("/bin/sleep", "30")
	ids := []syscall.SysProcIDMap{{HostID: 1_000_000_000, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("user namespace: %w", err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	return setMountAttr(m, 0, ns)
}

// TryDetachedOverlay makes an overlay over clones of a detached mount, which Linux can since 6.15.
func TryDetachedOverlay() error {
	m, err := NewMount("tmpfs", NoDev)
	if err != nil {
		return err
	}
	defer m.Close()
	c, err := CloneMount(m, "", 0, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	var opts []Option
	for _, name := range []string{"a", "b"} {
		if err := MkdirAt(c, name, 0o755); err != nil {
			return err
		}
		d, err := OpenAt(c, name)
		if err != nil {
			return err
		}
		defer d.Close()
		opts = append(opts, Option{Key: "lowerdir+", File: d})
	}
	o, err := NewMount("overlay", NoDev, opts...)
	if err != nil {
		return err
	}
	return o.Close()
}

// LandlockABI returns the version of Landlock that the kernel speaks.
func LandlockABI() (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// RaiseFileLimit lets this process have at least n descriptors open, as far as it may.
func RaiseFileLimit(n uint64) error {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return err
	}
	if r.Cur >= n {
		return nil
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: max(n, r.Max)}); err == nil {
		return nil
	}
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(n, r.Max), Max: r.Max})
}

// FileLimit returns how many descriptors this process may have open at most.
func FileLimit() (uint64, error) {
	var r unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r)
	return r.Max, err
}
