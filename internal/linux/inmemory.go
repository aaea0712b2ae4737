package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// InMemory tells whether a directory lies on a tmpfs.
func InMemory(dir string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return st.Type == unix.TMPFS_MAGIC, nil
}
