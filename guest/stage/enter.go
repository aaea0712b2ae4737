package stage

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// Enter makes the detached mount root the root directory and the prepared mounts part of it. It consumes no
// descriptor. After an error the shell is of no use any more.
func (s *Stage) Enter(root int, hostname string, shm int64) error {
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/new", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return wrap("attach root", err)
	}
	if err := unix.Chdir("/new"); err != nil {
		return wrap("enter root", err)
	}
	for _, d := range []string{"proc", "sys", "dev"} {
		err := place(d)
		if err == unix.ENOTDIR || err == unix.ELOOP { // not the platform's doing
			return &wire.Error{Code: wire.CodeInvalid, Message: "/" + d + " is not a directory in the environment: leave it out of its layers"}
		}
		if err != nil {
			return wrap("place /"+d, err)
		}
	}
	if err := needDir("etc", 0o755); err != nil {
		return wrap("make /etc", err)
	}
	if err := needDir("tmp", 0o1777); err != nil {
		return wrap("make /tmp", err)
	}
	if err := s.pivot(); err != nil {
		return wrap("enter root", err)
	}
	if shm > 0 && shm != DefaultShm {
		const flags = unix.MS_REMOUNT | unix.MS_NOSUID | unix.MS_NODEV
		if err := mount("", "/dev/shm", "", flags, "size="+strconv.FormatInt(shm, 10)); err != nil {
			return wrap("size /dev/shm", err)
		}
	}
	if hostname != "" {
		if err := unix.Sethostname([]byte(hostname)); err != nil {
			return wrap("set host name", err)
		}
	}
	return nil
}

// place moves a prepared mount below the new root, at the image's directory of that name. An image is hostile
// input: where it has a link or a file in that place, the claim ends.
func place(name string) error {
	if err := needDir(name, 0o755); err != nil {
		return err
	}
	to, err := openDir(name)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	from, err := unix.Open("/"+name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	return unix.MoveMount(from, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

func openDir(name string) (int, error) {
	return unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
}

// needDir makes a directory unless there is something of that name.
func needDir(name string, mode uint32) error {
	switch err := unix.Mkdirat(unix.AT_FDCWD, name, mode); err {
	case nil:
		return unix.Fchmodat(unix.AT_FDCWD, name, mode, 0) // past the umask
	case unix.EEXIST:
		return nil
	default:
		return err
	}
}

// pivot makes the current directory the root of the mount namespace and drops all else: the stage, and the tree that
// the stage was made on.
func (s *Stage) pivot() error {
	root, err := unix.Open(".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	if err := unix.Fchdir(s.below); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	unix.Close(s.below)
	s.below = -1
	if err := unix.Fchdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return unix.Chdir("/")
}
