package linux

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// NewMountAs is NewMount with the file-system ids of the thread set to id while the file system is made, all
// capabilities kept. Overlayfs works with the ids of whoever made it; over an idmapped upper layer they must
// be ids that exist there, else the overlay silently becomes read-only.
func NewMountAs(fstype string, attr MountAttr, id uint32, opts ...Option) (*os.File, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&hdr, &caps[0]); err != nil {
		return nil, err
	}
	// Raw calls: they concern this thread alone. setfsuid to another than 0 drops the capabilities over files
	// from the effective set; capset brings them back.
	setFSIDs(id)
	if err := unix.Capset(&hdr, &caps[0]); err != nil {
		setFSIDs(0)
		return nil, err
	}
	f, err := NewMount(fstype, attr, opts...)
	setFSIDs(0)
	return f, err
}

func setFSIDs(id uint32) {
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(id), 0, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(id), 0, 0)
}
