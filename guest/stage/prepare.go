package stage

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// Stage is what is kept of the preparation.
type Stage struct {
	// Pts is a descriptor (O_PATH) of the sandbox's own terminal file system, so that terminals are opened
	// without looking at a path that the sandbox can change.
	Pts int
	// Null is /dev/null.
	Null int

	below int // the root that the stage lies on (O_PATH)
}

// Prepare builds the stage at dir, an empty directory, and makes it the root of this process. What lies below goes
// with Enter: to pivot twice would cost as much again, for the kernel looks at every task of the machine.
func Prepare(dir string) (*Stage, error) {
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, wrap("make mounts private", err)
	}
	if err := mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=1m"); err != nil {
		return nil, wrap("mount stage", err)
	}
	if err := unix.Chdir(dir); err != nil {
		return nil, wrap("enter stage", err)
	}
	for _, d := range []string{"proc", "sys", "dev", "new", "empty"} {
		if err := unix.Mkdir(d, 0o755); err != nil {
			return nil, wrap("make "+d, err)
		}
	}
	if err := kernelFiles(); err != nil {
		return nil, err
	}
	s := &Stage{}
	if err := s.dev(); err != nil {
		return nil, err
	}
	var err error
	if s.below, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, wrap("open root", err)
	}
	if err := unix.Chroot("."); err != nil {
		return nil, wrap("enter stage", err)
	}
	return s, loopbackUp()
}

// kernelFiles mounts proc and sysfs.
func kernelFiles() error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := mount("proc", "proc", "proc", flags, ""); err != nil {
		return wrap("mount proc", err)
	}
	if err := mount("sysfs", "sys", "sysfs", flags|unix.MS_RDONLY, ""); err != nil {
		return wrap("mount sysfs", err)
	}
	// The bind of an empty directory is made read-only once and then bound over every masked directory.
	if err := mount("empty", "empty", "tmpfs", flags|unix.MS_RDONLY, "mode=755,size=4k"); err != nil {
		return wrap("mount empty", err)
	}
	for _, p := range masked {
		if err := mask(p); err != nil {
			return wrap("mask "+p, err)
		}
	}
	for _, p := range readOnly {
		if err := bind(p, p, flags|unix.MS_RDONLY); err != nil && err != unix.ENOENT {
			return wrap("protect "+p, err)
		}
	}
	return nil
}

func mask(path string) error {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return nil
	}
	from := "/dev/null"
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		from = "empty"
	}
	return mount(from, path, "", unix.MS_BIND, "")
}

// dev makes the small /dev.
func (s *Stage) dev() error {
	if err := mount("dev", "dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=64k"); err != nil {
		return wrap("mount dev", err)
	}
	for _, d := range devices {
		fd, err := unix.Open("dev/"+d, unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_WRONLY, 0o666)
		if err != nil {
			return wrap("make dev/"+d, err)
		}
		unix.Close(fd)
		if err := mount("/dev/"+d, "dev/"+d, "", unix.MS_BIND, ""); err != nil {
			return wrap("bind dev/"+d, err)
		}
	}
	for _, l := range links {
		if err := unix.Symlink(l[0], l[1]); err != nil {
			return wrap("link "+l[1], err)
		}
	}
	for _, m := range []struct{ name, fs, opts string }{
		{"dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=0620,gid=5,max=" + strconv.Itoa(maxTerminals)},
		{"dev/shm", "tmpfs", "mode=1777,size=" + strconv.Itoa(DefaultShm)},
		{"dev/mqueue", "mqueue", ""},
	} {
		if err := unix.Mkdir(m.name, 0o755); err != nil {
			return wrap("make "+m.name, err)
		}
		flags := uintptr(unix.MS_NOSUID | unix.MS_NOEXEC)
		if m.fs != "devpts" {
			flags |= unix.MS_NODEV
		}
		if m.name == "dev/shm" {
			flags &^= unix.MS_NOEXEC // some runtimes map code there
		}
		if err := mount(m.fs, m.name, m.fs, flags, m.opts); err != nil && m.fs != "mqueue" {
			return wrap("mount "+m.name, err)
		}
	}
	var err error
	if s.Pts, err = unix.Open("dev/pts", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return wrap("open dev/pts", err)
	}
	if s.Null, err = unix.Open("dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return wrap("open dev/null", err)
	}
	return nil
}
