package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// TakesImages tells whether the kernel mounts an EROFS image that is a plain file in dir: it reads such files by page,
// which file systems in memory and overlays do not offer. name says what lies there when it does not.
func TakesImages(dir string) (ok bool, name string, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, "", &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	switch st.Type {
	case unix.TMPFS_MAGIC:
		return false, "tmpfs", nil
	case unix.RAMFS_MAGIC:
		return false, "ramfs", nil
	case unix.OVERLAYFS_SUPER_MAGIC:
		return false, "overlay", nil
	}
	return true, "", nil
}
