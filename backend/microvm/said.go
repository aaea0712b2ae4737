package microvm

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// What QEMU itself says goes into a named pipe in the machine's directory, which QEMU holds open at both ends: the kernel keeps
// 64 KiB of it, whoever reads, and QEMU loses what does not fit instead of waiting.

// words is the reading end of one. A machine's is open as long as its instance, so that they outlive QEMU.
type words struct {
	f    *os.File
	mu   sync.Mutex
	last []byte
}

// openWords opens a machine's pipe, made where there is none.
func (d *Driver) openWords(id sandbox.ID) (*words, error) {
	path := filepath.Join(d.dir(id), logName)
	if err := syscall.Mkfifo(path, 0o600); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	return &words{f: f}, err
}

// pen opens the end that QEMU gets; after it was started it is not to wait for a reader, which unwait sees to.
func (w *words) pen() (*os.File, error) {
	return os.OpenFile(w.f.Name(), os.O_RDWR|syscall.O_NONBLOCK, 0)
}

// unwait undoes what handing a file to a process does to it.
func unwait(f *os.File) error { return syscall.SetNonblock(int(f.Fd()), true) }

// read is what was said last, maxEvidence bytes at most.
func (w *words) read() string {
	if w == nil || w.f == nil {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.f.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // what is there is there
	b, _ := io.ReadAll(io.LimitReader(w.f, 1<<20))
	w.last = append(w.last, b...)
	w.last = w.last[max(0, len(w.last)-maxEvidence):]
	return strings.ToValidUTF8(meant(string(w.last)), "?")
}

// hubWarning is what each QEMU says whose machine has an interface that leads nowhere, as it is meant to.
const hubWarning = "warning: hub 0 is not connected to host network"

// meant leaves out what QEMU says of nothing.
func meant(said string) string {
	var b strings.Builder
	for line := range strings.Lines(said) {
		if !strings.Contains(line, hubWarning) {
			b.WriteString(line)
		}
	}
	return strings.TrimSpace(b.String())
}

func (w *words) close() {
	if w != nil && w.f != nil {
		w.f.Close()
	}
}
