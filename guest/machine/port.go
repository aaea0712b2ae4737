package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// deviceWait bounds what is waited for in a booting machine: emulated on a busy node it is slow.
const deviceWait = 20 * time.Second

// port is one of the machine's serial ports.
type port struct {
	f   *os.File
	raw syscall.RawConn
}

// openPort opens the port of a name.
func openPort(name string) (*port, error) {
	var dev string
	err := await("port "+name, func() bool {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == name {
				dev = "/dev/" + filepath.Base(filepath.Dir(n))
				return true
			}
		}
		return false
	})
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(dev, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	return &port{f, raw}, err
}

// Read waits for bytes. With no host attached a port reads as ended at once, and again and again: then it waits for the
// host to come.
func (p *port) Read(b []byte) (n int, err error) {
	rerr := p.raw.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), b)
		return !(err == unix.EAGAIN || err == unix.EINTR || err == nil && n == 0)
	})
	if rerr != nil {
		return 0, rerr
	}
	return max(n, 0), err
}

// Write writes all of b, however long the host takes.
func (p *port) Write(b []byte) (int, error) { return p.f.Write(b) }

// await looks for something that is about to appear.
func await(what string, there func() bool) error {
	for deadline := time.Now().Add(deviceWait); !there(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("no %s appeared", what)
		}
	}
	return nil
}
