package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// Exchange gives two names each other's files at once. Not every file system can: EINVAL, ENOSYS.
func Exchange(a, b string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
	}
	return nil
}
