package fncall

import (
	"context"
	"sync"
)

// Bounds of what is remembered of ended calls.
const (
	maxRecent      = 16384
	maxRecentBytes = 64 << 20
)

// recent makes calls with ids run once: who asks again while one runs, or soon after, gets the same result.
type recent struct {
	mu    sync.Mutex
	m     map[string]*remembered
	order []string // ended ones, oldest first
	bytes int
}

type remembered struct {
	done chan struct{}
	r    *Result
	err  error
	size int
}

func newRecent() *recent { return &recent{m: map[string]*remembered{}} }

// do runs f unless id has been run. What failed to run at all is not remembered. The call goes on when who asked for it
// goes: they, or their connection's successor, may ask again.
func (c *recent) do(ctx context.Context, id string, f func(context.Context) (*Result, error)) (*Result, error) {
	c.mu.Lock()
	e := c.m[id]
	if e == nil {
		e = &remembered{done: make(chan struct{})}
		c.m[id] = e
		c.mu.Unlock()
		go func() {
			e.r, e.err = f(context.WithoutCancel(ctx))
			c.ended(id, e)
			close(e.done)
		}()
	} else {
		c.mu.Unlock()
	}
	select {
	case <-e.done:
		return e.r, e.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *recent) ended(id string, e *remembered) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.err != nil {
		delete(c.m, id)
		return
	}
	e.size = len(e.r.Stdout) + len(e.r.Stderr) + 512
	for _, f := range e.r.Files {
		e.size += len(f.Data)
	}
	c.bytes += e.size
	for c.order = append(c.order, id); len(c.order) > maxRecent || c.bytes > maxRecentBytes; c.order = c.order[1:] {
		if old := c.m[c.order[0]]; old != nil {
			c.bytes -= old.size
			delete(c.m, c.order[0])
		}
	}
}
