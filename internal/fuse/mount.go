package fuse

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

const (
	// MaxRead is the most that one request asks for, bytes: the kernel's own bound.
	MaxRead = 1 << 20
	// readahead is how far the kernel reads ahead of who goes straight on, bytes: two requests under way.
	readahead = 2 * MaxRead
	// background is how many requests the kernel makes on nobody's behalf (reading ahead) at a time.
	background = 64
	// initWait bounds the wait for the kernel's first word.
	initWait = 5 * time.Second
)

// New makes a detached mount and the device to serve it with, and comes to terms with the kernel. Error:
// sandbox.ErrUnsupported where the kernel has no FUSE or cannot send requests again.
func New(name string) (device, mount *os.File, err error) {
	device, mount, err = linux.NewFUSE(name)
	if err != nil {
		return nil, nil, fmt.Errorf("fuse: %w: %w", sandbox.ErrUnsupported, err)
	}
	if err := handshake(device); err != nil {
		mount.Close()
		device.Close()
		return nil, nil, err
	}
	// Not fatal: it costs speed alone. The kernel reads 128 KiB ahead unless told.
	_ = linux.SetReadahead(mount, readahead)
	return device, mount, nil
}

// handshake answers INIT.
func handshake(device *os.File) error {
	_ = device.SetReadDeadline(time.Now().Add(initWait))
	defer func() { _ = device.SetReadDeadline(time.Time{}) }()
	buf := make([]byte, bufSize)
	n, err := device.Read(buf)
	if err != nil {
		return fmt.Errorf("fuse: read INIT: %w", err)
	}
	h, body, err := parse(buf[:n])
	if err != nil {
		return err
	}
	if h.op != opInit || len(body) < 16 {
		return fmt.Errorf("fuse: request %d of %d bytes came before INIT", h.op, n)
	}
	major, minor, ahead, flags := ne.Uint32(body), ne.Uint32(body[4:]), ne.Uint32(body[8:]), ne.Uint32(body[12:])
	flags2 := uint32(0)
	if flags&initExt != 0 && len(body) >= 20 {
		flags2 = ne.Uint32(body[16:])
	}
	if major != protoMajor || flags2&hasResend == 0 || flags&maxPages == 0 {
		_ = answer(device, h.unique, syscall.EPROTO)
		return fmt.Errorf("fuse: %w: the kernel speaks version %d.%d without sending requests again; want Linux 6.9", sandbox.ErrUnsupported, major, minor)
	}
	// No passthrough: EROFS refuses a file system that may be stacked upon another.
	flags &= asyncRead | parallelDir | asyncDirect | maxPages | noOpendir | explicitInval | initExt
	return answer(device, h.unique, 0, initOut(minor, max(ahead, readahead), flags, hasResend))
}

// answer writes one answer.
func answer(device *os.File, unique uint64, errno syscall.Errno, content ...[]byte) error {
	size := 0
	for _, c := range content {
		size += len(c)
	}
	err := linux.Writev(device, append([][]byte{outHeader(unique, int32(errno), size)}, content...))
	if errors.Is(err, syscall.ENOENT) {
		return nil // who asked is gone, or has been answered
	}
	return err
}

// resend asks the kernel to send again what was taken and not answered.
func resend(device *os.File) error {
	if err := linux.Writev(device, [][]byte{outHeader(0, -notifyResend, 0)}); err != nil {
		return fmt.Errorf("fuse: ask for requests again: %w", err)
	}
	return nil
}

// Probe tells whether this machine can serve files whose server may die. Errors as of New.
func Probe() error {
	device, mount, err := New("dsec-probe")
	if err != nil {
		return err
	}
	return errors.Join(mount.Close(), device.Close())
}
