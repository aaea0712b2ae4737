package initd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/guesttest"
	"github.com/opendsec/dsec/guest/wire"
)

func TestMain(m *testing.M) {
	code := m.Run()
	guesttest.Cleanup()
	os.Exit(code)
}

// box is a claimed sandbox with what tests do to it.
type box struct {
	*guesttest.Shell
	t   *testing.T
	c   *aether.Conn
	r   *guesttest.Recorder
	ctx context.Context
}

func newBox(t *testing.T, claim *wire.Claim) *box {
	t.Helper()
	s, c, r := guesttest.Sandbox(t, guesttest.Options{}, claim)
	ctx, cancel := guesttest.Context(t)
	t.Cleanup(cancel)
	t.Cleanup(func() {
		for _, f := range r.Faults() {
			t.Error(f)
		}
	})
	return &box{Shell: s, t: t, c: c, r: r, ctx: ctx}
}

var serial atomic.Int64

func id() string { return fmt.Sprintf("cmd-%d", serial.Add(1)) }

// try runs a command to its end.
func (b *box) try(s wire.Start) (guesttest.Result, error) {
	b.t.Helper()
	if s.ID == "" {
		s.ID = id()
	}
	if _, err := b.c.Start(b.ctx, &s, nil); err != nil {
		return guesttest.Result{}, err
	}
	res, err := b.r.Wait(b.ctx, s.ID)
	if err != nil {
		b.t.Fatal(err)
	}
	b.c.Release(s.ID)
	b.r.Forget(s.ID)
	return res, nil
}

func (b *box) run(s wire.Start) guesttest.Result {
	b.t.Helper()
	res, err := b.try(s)
	if err != nil {
		b.t.Fatal(err)
	}
	return res
}

// sh runs a shell command line that must succeed and returns its stdout.
func (b *box) sh(script string) string {
	b.t.Helper()
	res := b.run(wire.Start{Shell: script})
	if res.Exit.Code != 0 || res.Exit.Signal != 0 {
		b.t.Fatalf("%s: %+v: %s", script, res.Exit, res.All)
	}
	return string(res.Bytes[wire.Stdout])
}

// start starts a command and returns its id.
func (b *box) start(s wire.Start) string {
	b.t.Helper()
	s.ID = id()
	if _, err := b.c.Start(b.ctx, &s, nil); err != nil {
		b.t.Fatal(err)
	}
	return s.ID
}

func (b *box) wait(id string) guesttest.Result {
	b.t.Helper()
	res, err := b.r.Wait(b.ctx, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return res
}

// until waits for text in a command's output.
func (b *box) until(id, text string) {
	b.t.Helper()
	_, err := b.r.Until(b.ctx, id, func(r *guesttest.Result) bool { return strings.Contains(string(r.All), text) })
	if err != nil {
		b.t.Fatal(err)
	}
}

func code(err error) wire.Code {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 255
}

func (b *box) wantCode(err error, want wire.Code) {
	b.t.Helper()
	if code(err) != want {
		b.t.Errorf("got %v (code %d), want code %d", err, code(err), want)
	}
}
