package container

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/sandbox"
)

// Create takes a warm shell and gives it the spec's environment.
func (d *Driver) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	if spec.ID != "" {
		return nil, fmt.Errorf("create container: %w: containers choose their own ids", sandbox.ErrInvalid)
	}
	if len(spec.Layers) == 0 {
		return nil, fmt.Errorf("create container: %w: no layers", sandbox.ErrInvalid)
	}
	if err := d.admit(); err != nil {
		return nil, err
	}
	d.Start()
	warm := d.warm
	if spec.Network != nil {
		if warm = d.warmNet; warm == nil {
			return nil, fmt.Errorf("create container: %w: this node has no network for sandboxes", sandbox.ErrUnsupported)
		}
		warm.grow(d.cfg.WarmNet)
	}
	t := time.Now()
	sh, err := warm.take(ctx)
	if err != nil {
		return nil, fmt.Errorf("create container: %w", err)
	}
	defer warm.done()
	d.observe("take_shell", time.Since(t))

	inst := newInstance(d, sh)
	if err := d.claim(ctx, sh, spec); err != nil {
		sh.release()
		if derr := inst.Destroy(context.WithoutCancel(ctx)); derr != nil {
			d.log.Error("parts of a failed creation are left for the next sweep", "id", sh.id, "err", derr)
		}
		return nil, createFailure(ctx, err)
	}
	return inst, nil
}

// admit refuses a creation while the pool is nearly full: writes of all sandboxes would fail with it.
func (d *Driver) admit() error {
	size, free, err := d.pool.Usage()
	if err != nil {
		return err
	}
	keep := d.cfg.PoolFree
	if keep == 0 {
		keep = min(512<<20, size/10)
	}
	if free < keep {
		return fmt.Errorf("%w: the writable-layer pool has %d MiB free of %d, and keeps %d: stop sandboxes or enlarge it",
			sandbox.ErrExhausted, free>>20, size>>20, keep>>20)
	}
	return nil
}

func (d *Driver) claim(ctx context.Context, sh *shell, spec *sandbox.Spec) error {
	t := time.Now()
	if err := failpoint.Hit("container/claim"); err != nil {
		return err
	}
	hostname := string(sh.id)
	if spec.Hostname != "" && spec.Hostname != hostname {
		hostname = spec.Hostname
		if err := sh.setHostname(hostname); err != nil {
			return err
		}
	}
	root, err := d.compose(ctx, sh, spec)
	if err != nil {
		return err
	}
	defer root.Close()
	d.observe("compose", time.Since(t))

	t = time.Now()
	if sh.limits == nil || *sh.limits != spec.Limits {
		if err := sh.limit(spec.Limits); err != nil {
			return err
		}
		d.expect(spec.Limits)
	}
	d.observe("limit", time.Since(t))
	if spec.Network != nil {
		t = time.Now()
		if err := d.setNetwork(sh.slot, sh.id, spec.NetworkGeneration, spec.Network); err != nil {
			return err
		}
		d.observe("network", time.Since(t))
	}
	if err := failpoint.Hit("container/composed"); err != nil {
		return err
	}

	t = time.Now()
	err = sh.conn.Claim(ctx, &wire.Claim{
		Hostname: hostname, Env: spec.Env, User: spec.User, Workdir: spec.Workdir,
		NoNewPrivileges: spec.NoNewPrivileges, ShmBytes: spec.Limits.ShmBytes,
	}, root)
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	d.observe("claim", time.Since(t))
	sh.release() // the overlay holds it all now
	return failpoint.Hit("container/claimed")
}

// expect makes the next shells ready for the limits of this sandbox: those of one job are alike. Limits on I/O are left
// out, which cost every shell a control group more.
func (d *Driver) expect(l sandbox.Limits) {
	if l.IOReadBPS == 0 && l.IOWriteBPS == 0 {
		d.limits.Store(&l)
	}
}

// createFailure says whose fault a failed creation was; errors that are answers of their own stay.
func createFailure(ctx context.Context, err error) error {
	var f *sandbox.Failure
	var w *wire.Error
	switch {
	case errors.As(err, &f), errors.Is(err, sandbox.ErrExhausted), errors.Is(err, sandbox.ErrInvalid):
		return err
	case errors.Is(err, sandbox.ErrNotFound), errors.Is(err, sandbox.ErrUnavailable):
		return fmt.Errorf("%w: %w", sandbox.NewFailure(sandbox.KindImageUnavailable, "%v", err), err)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &w) && (w.Code == wire.CodeNoUser || w.Code == wire.CodeInvalid):
		return fmt.Errorf("%w: %s", sandbox.ErrInvalid, w.Message)
	}
	return sandbox.NewFailure(sandbox.KindInternal, "create container: %v", err)
}
