package linux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// LoopAttach gives a loop device over the file at path. The device detaches itself when the last user (mount
// or open descriptor) is gone, so a crash leaves none behind. If a device over this file exists already, that
// one is returned: two over one file would corrupt it.
func LoopAttach(path string) (*os.File, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	if dev, err := loopFind(path); err != nil || dev != nil {
		return dev, err
	}
	back, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer back.Close()
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	for range 64 { // others may take the same free one first
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, ctl.Fd(), unix.LOOP_CTL_GET_FREE, 0)
		if errno != 0 {
			return nil, fmt.Errorf("get a free loop device: %w", errno)
		}
		dev, err := os.OpenFile("/dev/loop"+strconv.Itoa(int(n)), os.O_RDWR, 0)
		if errors.Is(err, os.ErrNotExist) {
			_ = unix.Mknod("/dev/loop"+strconv.Itoa(int(n)), unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n))))
			continue
		}
		if err != nil {
			return nil, err
		}
		cfg := unix.LoopConfig{Fd: uint32(back.Fd()), Size: 4096}
		cfg.Info.Flags = unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO
		copy(cfg.Info.File_name[:], path)
		err = ioctl(dev, unix.LOOP_CONFIGURE, unsafe.Pointer(&cfg))
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("configure %s over %s: %w", dev.Name(), path, err)
		}
	}
	return nil, fmt.Errorf("loop device over %s: none free", path)
}

// LoopOver tells whether a loop device over the file exists.
func LoopOver(path string) (bool, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false, err
	}
	dev, err := loopFind(path)
	if dev != nil {
		dev.Close()
	}
	return dev != nil, err
}

func loopFind(path string) (*os.File, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || strings.TrimSuffix(string(b), "\n") != path {
			continue
		}
		dev := "/dev/" + strings.Split(f, "/")[3]
		d, err := os.OpenFile(dev, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		return d, nil
	}
	return nil, nil
}

// Allocate reserves size bytes for the file, so that writes through a loop device never meet a full disk.
func Allocate(f *os.File, size int64) error {
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		return &os.PathError{Op: "allocate " + strconv.FormatInt(size, 10) + " bytes for", Path: f.Name(), Err: err}
	}
	return nil
}
