package fake

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/opendsec/dsec/sandbox"
)

var _ sandbox.Saver = (*Machine)(nil)

// ErrHang, returned by the hook "save", makes it go on until its context ends. Its error then is of what was cut, as a connection's.
var ErrHang = errors.New("until the context ends")

// Save implements sandbox.Saver: a machine that is saved has no connection. The hook "save" may make it fail.
func (m *Machine) Save(ctx context.Context) (int64, error) {
	err := m.b.hook("save", m.id)
	if errors.Is(err, ErrHang) {
		<-ctx.Done()
		err = fmt.Errorf("save fake machine %s: %w", m.id, os.ErrDeadlineExceeded)
	}
	if err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	if m.dead || !m.paused {
		m.mu.Unlock()
		return 0, fmt.Errorf("fake machine %s: %w: it is not paused", m.id, sandbox.ErrFailedPrecondition)
	}
	m.saved = true
	p := m.peer
	m.mu.Unlock()
	if p != nil {
		p.close()
	}
	return 1 << 20, nil
}

// Saved implements sandbox.Saver.
func (m *Machine) Saved() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.saved
}
