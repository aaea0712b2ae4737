package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// RemoveTreeAt removes name in dir and, if it is a directory, the plain files in it (one level: it is for what
// we made ourselves).
func RemoveTreeAt(dir *os.File, name string) error {
	sub, err := OpenDirAt(dir, name)
	if err == nil {
		names, rerr := sub.Readdirnames(-1)
		for _, n := range names {
			if rerr == nil {
				rerr = unix.Unlinkat(int(sub.Fd()), n, 0)
			}
		}
		sub.Close()
		if rerr != nil {
			return &os.PathError{Op: "remove", Path: dir.Name() + "/" + name, Err: rerr}
		}
		err = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
	} else {
		err = unix.Unlinkat(int(dir.Fd()), name, 0)
	}
	if err != nil {
		return &os.PathError{Op: "remove", Path: dir.Name() + "/" + name, Err: err}
	}
	return nil
}

// SetOwnerAt sets mode and owner of a directory in dir.
func SetOwnerAt(dir *os.File, name string, mode, uid, gid uint32) error {
	sub, err := OpenDirAt(dir, name)
	if err != nil {
		return err
	}
	defer sub.Close()
	if err := unix.Fchown(int(sub.Fd()), int(uid), int(gid)); err != nil {
		return &os.PathError{Op: "chown", Path: sub.Name(), Err: err}
	}
	if err := unix.Fchmod(int(sub.Fd()), mode); err != nil {
		return &os.PathError{Op: "chmod", Path: sub.Name(), Err: err}
	}
	return nil
}
