package fake

import (
	"io"
	"sync"

	"github.com/opendsec/dsec/guest/wire"
)

// inbox is a process's stdin.
type inbox struct {
	mu      sync.Mutex
	changed sync.Cond
	data    []byte
	eof     bool
	writers wire.Writers
}

func newInbox() *inbox {
	b := &inbox{}
	b.changed.L = &b.mu
	return b
}

// take takes what of an Input is new.
func (b *inbox) take(m *wire.Input) *wire.Error {
	b.mu.Lock()
	defer b.mu.Unlock()
	data, repeated, err := b.writers.Fresh(m)
	switch {
	case err != nil:
		return err
	case repeated:
		return nil
	case b.eof:
		return refuse(wire.CodeClosed, "stdin is closed")
	}
	b.writers.Took(m)
	b.data = append(b.data, data...)
	b.eof = m.EOF
	b.changed.Broadcast()
	return nil
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
