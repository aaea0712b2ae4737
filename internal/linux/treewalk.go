package linux

import (
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// FileInfo is what fstat says about an object of a tree.
type FileInfo struct {
	Mode         uint32 // type and permissions, as in st_mode
	UID, GID     uint32
	Mtime        int64 // seconds since 1970
	MtimeNsec    uint32
	Ctime        int64 // seconds since 1970
	CtimeNsec    uint32
	Size         int64
	Nlink        uint64
	Dev, Ino     uint64
	Major, Minor uint32 // devices
}

// OpenObjectAt opens name in dir without following it, and describes it: regular files and directories for
// reading, everything else as a descriptor that only names it, so that no device is opened.
func OpenObjectAt(dir *os.File, name string) (*os.File, FileInfo, error) {
	full := path.Join(dir.Name(), name)
	fail := func(op string, err error) (*os.File, FileInfo, error) {
		return nil, FileInfo{}, &os.PathError{Op: op, Path: full, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fail("stat", err)
	}
	flags := unix.O_PATH
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		flags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY // should it have become a pipe or a terminal
	case unix.S_IFDIR:
		flags = unix.O_RDONLY | unix.O_DIRECTORY
	}
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail("open", err)
	}
	before := st.Mode & unix.S_IFMT
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return fail("fstat", err)
	}
	if st.Mode&unix.S_IFMT != before {
		unix.Close(fd)
		return fail("open", fmt.Errorf("changed its type while it was being opened"))
	}
	return os.NewFile(uintptr(fd), full), fileInfo(&st), nil
}

// OpenRegularAt opens a regular file beneath dir for reading; no symbolic links are followed, and nothing else is opened.
func OpenRegularAt(dir *os.File, path string) (*os.File, error) {
	named, err := OpenAt(dir, path)
	if err != nil {
		return nil, err
	}
	defer named.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(named.Fd()), &st); err != nil {
		return nil, &os.PathError{Op: "fstat", Path: named.Name(), Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &os.PathError{Op: "open", Path: named.Name(), Err: unix.EINVAL}
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", named.Fd())) // the very object that was looked at
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: named.Name(), Err: err}
	}
	return f, nil
}

// Stat describes an open file.
func Stat(f *os.File) (FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return FileInfo{}, &os.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	return fileInfo(&st), nil
}

// Lstat describes the object that path names, symbolic links not followed.
func Lstat(path string) (FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return FileInfo{}, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	return fileInfo(&st), nil
}

func fileInfo(st *unix.Stat_t) FileInfo {
	return FileInfo{
		Mode: st.Mode, UID: st.Uid, GID: st.Gid,
		Mtime: st.Mtim.Sec, MtimeNsec: uint32(st.Mtim.Nsec), Ctime: st.Ctim.Sec, CtimeNsec: uint32(st.Ctim.Nsec),
		Size: st.Size, Nlink: uint64(st.Nlink), Dev: uint64(st.Dev), Ino: st.Ino,
		Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev),
	}
}

// ReadLink returns the target of the symbolic link that f (opened by OpenObjectAt) names.
func ReadLink(f *os.File) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(f.Fd()), "", buf)
	if err != nil {
		return "", &os.PathError{Op: "readlink", Path: f.Name(), Err: err}
	}
	return string(buf[:n]), nil
}

// MountErofs attaches an EROFS image at dir; the rest is as NewErofs has it.
func MountErofs(meta, data, dir string, readahead int) error {
	m, err := NewErofs(meta, data, 0, readahead)
	if err != nil {
		return err
	}
	defer m.Close()
	return AttachMount(m, dir)
}

// AttachMount attaches a detached mount at dir.
func AttachMount(m *os.File, dir string) error {
	if err := unix.MoveMount(int(m.Fd()), "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach %s at %s: %w", m.Name(), dir, err)
	}
	return nil
}

// Unmount detaches what is mounted at dir.
func Unmount(dir string) error {
	if err := unix.Unmount(dir, 0); err != nil {
		return &os.PathError{Op: "unmount", Path: dir, Err: err}
	}
	return nil
}

// SetTimes sets access and modification time of the object that path names, symbolic links not followed.
func SetTimes(path string, when time.Time) error {
	ts, err := unix.TimeToTimespec(when)
	if err != nil {
		return &os.PathError{Op: "utimes", Path: path, Err: err}
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "utimes", Path: path, Err: err}
	}
	return nil
}
