package linux

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The btrfs ioctls that the writable-layer pool uses (linux/btrfs.h); sizes are part of the numbers.
const (
	btrfsMagic            = 0x94
	btrfsSubvolCreateV2   = 1<<30 | 4096<<16 | btrfsMagic<<8 | 24
	btrfsSnapCreateV2     = 1<<30 | 4096<<16 | btrfsMagic<<8 | 23
	btrfsSnapDestroy      = 1<<30 | 4096<<16 | btrfsMagic<<8 | 15
	btrfsQuotaCtl         = 3<<30 | 16<<16 | btrfsMagic<<8 | 40
	btrfsQgroupLimit      = 2<<30 | 48<<16 | btrfsMagic<<8 | 43
	btrfsInoLookup        = 3<<30 | 4096<<16 | btrfsMagic<<8 | 18
	btrfsFsInfo           = 2<<30 | 1024<<16 | btrfsMagic<<8 | 31
	btrfsSubvolRdonly     = 1 << 1
	btrfsQuotaEnable      = 1
	btrfsQuotaSimple      = 4
	btrfsQgroupMaxRfer    = 1 << 0
	btrfsFirstFreeObjID   = 256
	btrfsPathNameMax      = 4087
	btrfsSubvolNameMax    = 4039
	btrfsVolArgsV2NameOff = 56 // fd, transid, flags, unused[4]
)

func ioctl(f *os.File, req uintptr, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), req, uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}

// SubvolumeCreate makes a btrfs subvolume called name in dir.
func SubvolumeCreate(dir *os.File, name string) error {
	return volArgsV2(dir, btrfsSubvolCreateV2, 0, 0, name)
}

// SubvolumeSnapshot makes a snapshot of the subvolume src, called name, in dir; read-only if asked.
func SubvolumeSnapshot(dir *os.File, name string, src *os.File, readOnly bool) error {
	var flags uint64
	if readOnly {
		flags = btrfsSubvolRdonly
	}
	return volArgsV2(dir, btrfsSnapCreateV2, int64(src.Fd()), flags, name)
}

func volArgsV2(dir *os.File, req uintptr, fd int64, flags uint64, name string) error {
	var a [4096]byte
	if len(name) > btrfsSubvolNameMax || name == "" {
		return fmt.Errorf("subvolume name of %d bytes", len(name))
	}
	*(*int64)(unsafe.Pointer(&a[0])) = fd
	*(*uint64)(unsafe.Pointer(&a[16])) = flags
	copy(a[btrfsVolArgsV2NameOff:], name)
	if err := ioctl(dir, req, unsafe.Pointer(&a[0])); err != nil {
		return &os.PathError{Op: "make subvolume", Path: dir.Name() + "/" + name, Err: err}
	}
	return nil
}

// SubvolumeDelete deletes the subvolume called name in dir; its space comes back in the background.
func SubvolumeDelete(dir *os.File, name string) error {
	var a [4096]byte
	if len(name) > btrfsPathNameMax || name == "" {
		return fmt.Errorf("subvolume name of %d bytes", len(name))
	}
	copy(a[8:], name)
	if err := ioctl(dir, btrfsSnapDestroy, unsafe.Pointer(&a[0])); err != nil {
		return &os.PathError{Op: "delete subvolume", Path: dir.Name() + "/" + name, Err: err}
	}
	return nil
}

// SubvolumeID returns the id of the subvolume that dir lies in; its quota group is 0/id.
func SubvolumeID(dir *os.File) (uint64, error) {
	var a [4096]byte
	*(*uint64)(unsafe.Pointer(&a[8])) = btrfsFirstFreeObjID
	if err := ioctl(dir, btrfsInoLookup, unsafe.Pointer(&a[0])); err != nil {
		return 0, &os.PathError{Op: "look up subvolume", Path: dir.Name(), Err: err}
	}
	return *(*uint64)(unsafe.Pointer(&a[0])), nil
}

// QuotaEnable turns quota accounting on: simple quotas (Linux 6.7; constant cost) where the kernel has them,
// full quota groups otherwise. It tells which. Calling it again is harmless.
func QuotaEnable(root *os.File) (simple bool, err error) {
	for _, cmd := range []uint64{btrfsQuotaSimple, btrfsQuotaEnable} {
		a := [2]uint64{cmd, 0}
		err = ioctl(root, btrfsQuotaCtl, unsafe.Pointer(&a[0]))
		if err == nil || err == unix.EEXIST {
			return cmd == btrfsQuotaSimple, nil
		}
	}
	return false, fmt.Errorf("enable btrfs quotas: %w", err)
}

// QuotaLimit sets how many bytes the subvolume with the given id may refer to; 0 removes the limit.
func QuotaLimit(root *os.File, id uint64, bytes int64) error {
	// struct btrfs_ioctl_qgroup_limit_args: qgroupid, then flags, max_rfer, max_excl, rsv_rfer, rsv_excl
	a := [6]uint64{id, btrfsQgroupMaxRfer, uint64(bytes)}
	if bytes == 0 {
		a[2] = ^uint64(0) // clears it
	}
	if err := ioctl(root, btrfsQgroupLimit, unsafe.Pointer(&a[0])); err != nil {
		return fmt.Errorf("limit quota group 0/%d: %w", id, err)
	}
	return nil
}

// BtrfsUUID returns the file system's id, as /sys/fs/btrfs names it.
func BtrfsUUID(root *os.File) (string, error) {
	var a [1024]byte
	if err := ioctl(root, btrfsFsInfo, unsafe.Pointer(&a[0])); err != nil {
		return "", &os.PathError{Op: "btrfs info", Path: root.Name(), Err: err}
	}
	u := a[16:32]
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16]), nil
}

// QuotaUsage returns the bytes that the subvolume with the given id refers to, as last committed or
// accounted.
func QuotaUsage(uuid string, id uint64) (int64, error) {
	b, err := os.ReadFile("/sys/fs/btrfs/" + uuid + "/qgroups/0_" + strconv.FormatUint(id, 10) + "/referenced")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// FsUsage returns size and free bytes of the file system that f lies on.
func FsUsage(f *os.File) (size, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: f.Name(), Err: err}
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, nil
}

// QuotaMax returns the limit of the subvolume with the given id, bytes; 0 = none.
func QuotaMax(uuid string, id uint64) (int64, error) {
	b, err := os.ReadFile("/sys/fs/btrfs/" + uuid + "/qgroups/0_" + strconv.FormatUint(id, 10) + "/max_referenced")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || n > 1<<62 {
		return 0, err
	}
	return int64(n), nil
}
