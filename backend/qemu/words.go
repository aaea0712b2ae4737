package qemu

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// wordsName is the pipe's name in a machine's directory; maxWords is what is told of it, bytes.
const (
	wordsName = "log"
	maxWords  = 4 << 10
)

// What QEMU itself says goes into a named pipe in the machine's directory, which QEMU holds open at both ends: the kernel keeps
// 64 KiB of it, whoever reads, and QEMU loses what does not fit instead of waiting.

// Words is the reading end of one. A machine's is open as long as its instance, so that they outlive QEMU.
type Words struct {
	f    *os.File
	mu   sync.Mutex
	last []byte
}

// OpenWords opens the pipe in a machine's directory, made where there is none.
func OpenWords(dir string) (*Words, error) {
	path := filepath.Join(dir, wordsName)
	if err := syscall.Mkfifo(path, 0o600); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	return &Words{f: f}, err
}

// Pen opens the end that QEMU gets; after it was started it is not to wait for a reader, which Unwait sees to.
func (w *Words) Pen() (*os.File, error) {
	return os.OpenFile(w.f.Name(), os.O_RDWR|syscall.O_NONBLOCK, 0)
}

// Unwait undoes what handing a file to a process does to it.
func Unwait(f *os.File) error { return syscall.SetNonblock(int(f.Fd()), true) }

// Read is what was said last, 4 KiB at most. A nil one says nothing.
func (w *Words) Read() string {
	if w == nil || w.f == nil {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.f.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // what is there is there
	b, _ := io.ReadAll(io.LimitReader(w.f, 1<<20))
	w.last = append(w.last, b...)
	w.last = w.last[max(0, len(w.last)-maxWords):]
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

// Close lets go of it.
func (w *Words) Close() {
	if w != nil && w.f != nil {
		w.f.Close()
	}
}
