package linux

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// IsLocalDisk tells whether path, or what there is of it, lies on a disk file system of this machine: one from whose
// files the kernel mounts EROFS. What cannot be told is taken for one.
func IsLocalDisk(path string) bool {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrNotExist) || path == filepath.Dir(path) {
			return true
		}
		path = filepath.Dir(path)
	}
	switch st.Type {
	case unix.NFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC,
		0x00c36400, // CephFS
		unix.V9FS_MAGIC, unix.AFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC:
		return false
	}
	return true
}
