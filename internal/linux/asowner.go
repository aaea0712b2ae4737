package linux

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// AsOwner runs fn on a thread whose effective user id is id, all capabilities kept. A user namespace that fn makes
// is then accounted to id: what the kernel limits per user (inotify instances, pending signals, namespaces) is
// counted for a namespace's members and for its owner as well, so that namespaces of one owner starve each other.
func AsOwner(id uint32, fn func() error) error {
	runtime.LockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&hdr, &caps[0]); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("read capabilities: %w", err)
	}
	// Raw calls: they concern this thread alone. To leave the effective id 0 empties the effective capabilities, not
	// the permitted ones.
	err := setEUID(id)
	if err == nil {
		if err = unix.Capset(&hdr, &caps[0]); err == nil {
			err = fn()
		}
		if back := setEUID(0); back != nil {
			return fmt.Errorf("become root again: %w", back) // the thread stays locked, and ends with its goroutine
		}
	}
	runtime.UnlockOSThread()
	return err
}

func setEUID(id uint32) error {
	keep := ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(id), keep); errno != 0 {
		return fmt.Errorf("set effective user id %d: %w", id, errno)
	}
	return nil
}
