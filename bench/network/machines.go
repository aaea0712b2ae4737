package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/testkit"
)

// machines: creations of microVMs with a network beside those without, in turns, each of a machine that was ready.
func (b *bench) machines(ctx context.Context) (err error) {
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		fmt.Fprintln(os.Stderr, "without microVMs:", err)
		return nil
	}
	const warm = 4
	w, err := b.startWhole(ctx, warm, "microvm=auto", "microvm-warm=1", testkit.KernelOpt())
	if err != nil {
		return err
	}
	defer func() {
		left, serr := w.stop()
		if len(left) > 0 {
			serr = errors.Join(serr, fmt.Errorf("left behind: %q", left))
		}
		err = errors.Join(err, serr)
	}()
	if err := w.settle(ctx); err != nil {
		return err
	}
	w.backend = dsecv1.Backend_BACKEND_MICROVM
	// The first boots, for which a busy node may take longer than a creation may; what it sets off goes on all the same.
	if _, err := w.create(ctx, 1); err != nil {
		fmt.Fprintln(os.Stderr, "the first machine:", err)
	}
	// As many shells as before, those with a link included, and a machine.
	return b.inTurns(ctx, w, "microvm_", max(3, b.n/60), func() error { return w.await(ctx, warm+max(1, warm/2)+1, 10*time.Minute) })
}
