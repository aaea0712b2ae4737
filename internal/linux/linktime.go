package linux

import (
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// SetLinkTime sets the times of a symbolic link itself, beneath root.
func SetLinkTime(root *os.Root, name string, at time.Time) error {
	dir, err := root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	ts := unix.NsecToTimespec(at.UnixNano())
	if err := unix.UtimesNanoAt(int(dir.Fd()), path.Base(name), []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "set times", Path: name, Err: err}
	}
	return nil
}
