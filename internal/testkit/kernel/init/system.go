package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

const finitModule = 313 // amd64

func loadModule(f *os.File) error {
	params := []byte{0}
	_, _, errno := syscall.Syscall(finitModule, f.Fd(), uintptr(unsafe.Pointer(&params[0])), 0)
	if errno != 0 && errno != syscall.EEXIST {
		return errno
	}
	return nil
}

func mount(source, dir, fs string, flags uintptr, data string) error {
	if err := syscall.Mount(source, dir, fs, flags, data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, dir, err)
	}
	return nil
}

// waitFor waits until a device is there.
func waitFor(path string) error {
	for deadline := time.Now().Add(30 * time.Second); ; {
		_, err := os.Stat(path)
		if err == nil || !errors.Is(err, os.ErrNotExist) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(5 * time.Millisecond) // devtmpfs announces nothing
	}
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// staticNodes makes the devices whose drivers are loaded when they are opened (loop-control, fuse, tun), as
// systemd-tmpfiles does.
func staticNodes(version string) error {
	b, err := os.ReadFile("/lib/modules/" + version + "/modules.devname")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		var module, name string
		var kind byte
		var major, minor int
		if n, _ := fmt.Sscanf(line, "%s %s %c%d:%d", &module, &name, &kind, &major, &minor); n != 5 {
			continue
		}
		mode := uint32(syscall.S_IFCHR)
		if kind == 'b' {
			mode = syscall.S_IFBLK
		}
		path := "/dev/" + name
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := syscall.Mknod(path, mode|0o600, major<<8|minor&0xff|(minor&^0xff)<<12); err != nil && err != syscall.EEXIST {
			return fmt.Errorf("make %s: %w", path, err)
		}
	}
	return nil
}
