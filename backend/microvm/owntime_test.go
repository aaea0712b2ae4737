package microvm

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/opendsec/dsec/backend/qemu"
)

// TestOwnTime: what has nothing to do is at its end when its time is over; what ends sooner says why.
func TestOwnTime(t *testing.T) {
	i := &instance{d: &Driver{cfg: Config{BootTimeout: time.Millisecond}}, limits: record{Process: qemu.Process{PID: os.Getpid()}}}
	ctx, cancel := i.within(t.Context())
	defer cancel()
	child, stop := context.WithCancel(ctx)
	defer stop()
	<-child.Done()
	if !errors.Is(child.Err(), context.DeadlineExceeded) {
		t.Errorf("at its end: %v", child.Err())
	}
	i.d.cfg.BootTimeout = time.Hour
	parent, stop := context.WithCancel(t.Context())
	ctx, cancel = i.within(parent)
	defer cancel()
	stop()
	if <-ctx.Done(); !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("with its parent: %v", ctx.Err())
	}
	ctx, cancel = i.within(t.Context())
	if ctx.Err() != nil {
		t.Error(ctx.Err())
	}
	cancel()
	if <-ctx.Done(); !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("given up: %v", ctx.Err())
	}
	if waiting(0) != 0 {
		t.Error("a process that there is not has waited")
	}
}
