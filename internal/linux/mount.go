package linux

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// MountAttr are per-mount attributes of a detached mount.
type MountAttr uint64

// The attributes.
const (
	ReadOnly MountAttr = unix.MOUNT_ATTR_RDONLY
	NoSuid   MountAttr = unix.MOUNT_ATTR_NOSUID
	NoDev    MountAttr = unix.MOUNT_ATTR_NODEV
	NoExec   MountAttr = unix.MOUNT_ATTR_NOEXEC
	NoAtime  MountAttr = unix.MOUNT_ATTR_NOATIME
)

// Option is one parameter of a file system being configured: a string, a descriptor or a flag.
type Option struct {
	Key   string
	Value string
	File  *os.File // set: the descriptor is the value
	Flag  bool     // set: the key alone
}

// NewMount makes a detached mount of a new file system: it belongs to no mount namespace and goes away with
// the returned descriptor (and whatever it was attached to). The error holds the kernel's own explanation.
func NewMount(fstype string, attr MountAttr, opts ...Option) (*os.File, error) {
	fs, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen %s: %w", fstype, err)
	}
	defer unix.Close(fs)
	for _, o := range opts {
		switch {
		case o.Flag:
			err = unix.FsconfigSetFlag(fs, o.Key)
		case o.File != nil:
			err = unix.FsconfigSetFd(fs, o.Key, int(o.File.Fd()))
		default:
			err = unix.FsconfigSetString(fs, o.Key, o.Value)
		}
		if err != nil {
			return nil, fmt.Errorf("%s option %s=%s: %w%s", fstype, o.Key, o.Value, err, fsLog(fs))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("create %s: %w%s", fstype, err, fsLog(fs))
	}
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, int(attr))
	if err != nil {
		return nil, fmt.Errorf("fsmount %s: %w%s", fstype, err, fsLog(fs))
	}
	return os.NewFile(uintptr(m), fstype), nil
}

// fsLog returns the messages that the kernel left in a file-system context.
func fsLog(fs int) string {
	var out string
	buf := make([]byte, 1024)
	for range 8 {
		n, err := unix.Read(fs, buf)
		if err != nil || n <= 0 {
			break
		}
		out += " (" + string(buf[:n]) + ")"
	}
	return out
}

// CloneMount makes a detached copy of the mount at dir/path ("" = dir itself, nil = path alone). With a user namespace its ids
// are mapped through that namespace: what lies on disk as 0 is the namespace's root.
func CloneMount(dir *os.File, path string, attr MountAttr, userns *os.File) (*os.File, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	at, name := unix.AT_FDCWD, path
	if dir != nil {
		at, name = int(dir.Fd()), dir.Name()+"/"+path
	}
	fd, err := unix.OpenTree(at, path, flags)
	if err != nil {
		return nil, fmt.Errorf("clone mount %s: %w", name, err)
	}
	c := os.NewFile(uintptr(fd), name)
	if err := setMountAttr(c, attr, userns); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// setMountAttr sets attributes and id mapping of a detached mount.
func setMountAttr(m *os.File, attr MountAttr, userns *os.File) error {
	ma := unix.MountAttr{Attr_set: uint64(attr)}
	if attr&NoAtime != 0 {
		ma.Attr_clr = unix.MOUNT_ATTR__ATIME // the kernel wants the old setting cleared by name
	}
	if userns != nil {
		ma.Attr_set |= unix.MOUNT_ATTR_IDMAP
		ma.Userns_fd = uint64(userns.Fd())
	}
	if ma.Attr_set == 0 {
		return nil
	}
	if err := unix.MountSetattr(int(m.Fd()), "", unix.AT_EMPTY_PATH, &ma); err != nil {
		return fmt.Errorf("set attributes of mount %s: %w", m.Name(), err)
	}
	return nil
}

// OpenAt opens a path beneath dir as a descriptor that only names it; no symbolic links are followed.
func OpenAt(dir *os.File, path string) (*os.File, error) {
	fd, err := unix.Openat2(int(dir.Fd()), path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: dir.Name() + "/" + path, Err: err}
	}
	return os.NewFile(uintptr(fd), dir.Name()+"/"+path), nil
}

// OpenDirAt opens a directory beneath dir for reading; no symbolic links are followed.
func OpenDirAt(dir *os.File, path string) (*os.File, error) {
	fd, err := unix.Openat2(int(dir.Fd()), path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: dir.Name() + "/" + path, Err: err}
	}
	return os.NewFile(uintptr(fd), dir.Name()+"/"+path), nil
}

// MkdirAt makes a directory in dir.
func MkdirAt(dir *os.File, name string, mode uint32) error {
	if err := unix.Mkdirat(int(dir.Fd()), name, mode); err != nil {
		return &os.PathError{Op: "mkdirat", Path: dir.Name() + "/" + name, Err: err}
	}
	return nil
}

// WriteAt makes a new regular file in dir with the given content.
func WriteAt(dir *os.File, name string, data []byte, mode uint32) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return &os.PathError{Op: "openat", Path: dir.Name() + "/" + name, Err: err}
	}
	_, err = unix.Write(fd, data)
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err != nil {
		return &os.PathError{Op: "write", Path: dir.Name() + "/" + name, Err: err}
	}
	return nil
}

// StatAt describes name in dir without following it.
func StatAt(dir *os.File, name string) (mode, uid, gid uint32, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return 0, 0, 0, &os.PathError{Op: "stat", Path: dir.Name() + "/" + name, Err: err}
	}
	return st.Mode, st.Uid, st.Gid, nil
}

// KernelAtLeast tells whether the running kernel's version is at least major.minor.
func KernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var v [2]int
	s := unix.ByteSliceToString(u.Release[:])
	for i := range v {
		n := 0
		for n < len(s) && s[n] >= '0' && s[n] <= '9' {
			n++
		}
		v[i], _ = strconv.Atoi(s[:n])
		if n < len(s) {
			n++
		}
		s = s[n:]
	}
	return v[0] > major || v[0] == major && v[1] >= minor
}
