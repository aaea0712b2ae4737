package linux

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// WaitFile waits until the content of a kernel file that announces its changes by POLLPRI (cgroup.events)
// satisfies ok. Errors: os.ErrDeadlineExceeded, os.ErrNotExist.
func WaitFile(path string, d time.Duration, ok func([]byte) bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	end := time.Now().Add(d)
	buf := make([]byte, 4096)
	for {
		n, err := f.ReadAt(buf, 0)
		if n == 0 && err != nil {
			if e, isPath := err.(*os.PathError); isPath && e.Err == unix.ENODEV {
				return fmt.Errorf("%s: %w", path, os.ErrNotExist) // removed meanwhile
			}
			return err
		}
		if ok(buf[:n]) {
			return nil
		}
		left := time.Until(end)
		if left <= 0 {
			return fmt.Errorf("wait for %s: %w", path, os.ErrDeadlineExceeded)
		}
		p := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(p, int(left.Milliseconds())+1); err != nil && err != unix.EINTR {
			return err
		}
	}
}
