package files

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Become gives the calling thread, which must be locked, the file system identity of a user. For any id but 0
// the kernel drops the capabilities over files with it, and brings them back with 0.
func Become(uid, gid uint32, groups []uint32) error {
	// As root first: only with its capabilities can the groups change.
	setFSID(unix.SYS_SETFSUID, 0)
	var p unsafe.Pointer
	if len(groups) > 0 {
		p = unsafe.Pointer(&groups[0])
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(p), 0); e != 0 {
		return fail("become the user", "", e)
	}
	setFSID(unix.SYS_SETFSGID, gid)
	setFSID(unix.SYS_SETFSUID, uid)
	// The calls report the id before; ask again what it is now.
	if setFSID(unix.SYS_SETFSGID, gid) != gid || setFSID(unix.SYS_SETFSUID, uid) != uid {
		return fail("become the user", "", unix.EINVAL)
	}
	return nil
}

func setFSID(nr, id uint32) uint32 {
	r, _, _ := unix.RawSyscall(uintptr(nr), uintptr(id), 0, 0)
	return uint32(r)
}
