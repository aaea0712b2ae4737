package fncall

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/opendsec/dsec/sandbox"
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
	done   chan struct{}
	what   [sha256.Size]byte // was asked for
	r      *Result
	err    error
	size   int
	asking int // those who wait for it
	cancel context.CancelFunc
	left   bool // given up, because nobody waited any more
}

func newRecent() *recent { return &recent{m: map[string]*remembered{}} }

// abandonAfter is how long a call goes on when nobody waits for it: who lost a connection asks again by then.
const abandonAfter = time.Second

// do runs f unless id has been run. What failed to run at all is not remembered. Error: ErrAlreadyExists when the id
// stands for something else than what.
func (c *recent) do(ctx context.Context, id string, what [sha256.Size]byte, f func(context.Context) (*Result, error)) (*Result, error) {
	for {
		e := c.ask(ctx, id, what, f)
		if e == nil {
			return nil, fmt.Errorf("operation id: %w: it stands for another call; use a new id for a new call", sandbox.ErrAlreadyExists)
		}
		select {
		case <-e.done:
			c.leave(e)
			if e.left && ctx.Err() == nil {
				continue // it was being given up when we came
			}
			return e.r, e.err
		case <-ctx.Done():
			c.leave(e)
			return nil, ctx.Err()
		}
	}
}

// ask finds the call, or begins it; leave must follow. nil = the id stands for another one.
func (c *recent) ask(ctx context.Context, id string, what [sha256.Size]byte, f func(context.Context) (*Result, error)) *remembered {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.m[id]
	if e != nil && e.what != what {
		return nil
	}
	if e == nil {
		e = &remembered{done: make(chan struct{}), what: what}
		ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
		c.m[id] = e
		go func() {
			defer e.cancel()
			e.r, e.err = f(ctx)
			c.ended(id, e)
			close(e.done)
		}()
	}
	e.asking++
	return e
}

func (c *recent) leave(e *remembered) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.asking--; e.asking > 0 {
		return
	}
	select {
	case <-e.done:
		return
	default:
	}
	time.AfterFunc(abandonAfter, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		select {
		case <-e.done:
		default:
			if e.asking == 0 {
				e.left = true
				e.cancel()
			}
		}
	})
}

func (c *recent) ended(id string, e *remembered) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.err != nil || e.left {
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
