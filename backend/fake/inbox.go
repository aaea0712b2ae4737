package fake

import (
	"io"
	"sync"
)

// inbox is a process's stdin.
type inbox struct {
	mu      sync.Mutex
	changed sync.Cond
	data    []byte
	eof     bool
}

func newInbox() *inbox {
	b := &inbox{}
	b.changed.L = &b.mu
	return b
}

func (b *inbox) put(p []byte, eof bool) {
	b.mu.Lock()
	if !b.eof {
		b.data = append(b.data, p...)
		b.eof = eof
	}
	b.changed.Broadcast()
	b.mu.Unlock()
}

func (b *inbox) close() { b.put(nil, true) }

// Read implements io.Reader.
func (b *inbox) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.data) == 0 && !b.eof {
		b.changed.Wait()
	}
	if len(b.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.data)
	b.data = b.data[n:]
	return n, nil
}
