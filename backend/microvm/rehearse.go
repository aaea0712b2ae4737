package microvm

import (
	"bytes"
	"context"
	"fmt"
	"path"

	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/machine"
	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/layer/erofs"
	"github.com/opendsec/dsec/sandbox"
)

// makeRehearsal makes the image of an environment that has dsec-init as its only program.
func makeRehearsal(prog []byte) (meta, data []byte, err error) {
	data = append(bytes.Clone(prog), make([]byte, (erofs.BlockSize-len(prog)%erofs.BlockSize)%erofs.BlockSize)...)
	file := &erofs.Inode{Mode: erofs.TypeRegular | 0o755, Size: int64(len(prog)), Extents: []erofs.Extent{{Length: int64(len(prog))}}}
	dir := func(e ...erofs.Dirent) *erofs.Inode { return &erofs.Inode{Mode: erofs.TypeDir | 0o755, Entries: e} }
	bin := dir(erofs.Dirent{Name: path.Base(machine.RehearsePath), Inode: file})
	root := dir(erofs.Dirent{Name: "bin", Inode: bin}, erofs.Dirent{Name: "dev", Inode: dir()}, erofs.Dirent{Name: "proc", Inode: dir()},
		erofs.Dirent{Name: "sys", Inode: dir()}, erofs.Dirent{Name: "tmp", Inode: dir()})
	var b bytes.Buffer
	if _, err := erofs.Write(&b, root, erofs.Options{DataSize: int64(len(data))}); err != nil {
		return nil, nil, fmt.Errorf("rehearsal: %w", err)
	}
	return b.Bytes(), data, nil
}

// rehearse makes a machine go through a claim and a command, of an image of the platform's own, and forget it: what the
// kernel, dsec-init, QEMU and its translator do for the first time is then behind it.
func (i *instance) rehearse(ctx context.Context, m *hardware) error {
	spec := &sandbox.Spec{Limits: sandbox.Limits{MemoryBytes: m.memory - guestOverhead, Pids: 64, ShmBytes: 1 << 20}}
	if err := i.fill(ctx, []layerFiles{m.boot.rehearsal}); err != nil {
		return err
	}
	if err := i.run(ctx, "cont"); err != nil {
		return err
	}
	if err := i.claim(ctx, spec, []layerFiles{m.boot.rehearsal}); err != nil {
		return err
	}
	c, err := i.Connect(ctx)
	if err != nil {
		return err
	}
	h := &audience{exited: make(chan wire.Exit, 1), closed: make(chan error, 1)}
	c.Serve(h)
	defer func() {
		c.Close()
		<-h.closed
	}()
	if _, err := c.Start(ctx, &wire.Start{ID: "rehearsal", Argv: []string{machine.RehearsePath, machine.Rehearse}}, nil); err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	select {
	case e := <-h.exited:
		if e.Code != 0 || e.Signal != 0 {
			return fmt.Errorf("rehearse: the command ended with %d, signal %d", e.Code, e.Signal)
		}
		c.Release("rehearsal")
	case err := <-h.closed:
		h.closed <- err
		return fmt.Errorf("rehearse: %w", err)
	case <-ctx.Done():
		return fmt.Errorf("rehearse: %w", ctx.Err())
	}
	ctl, err := i.control()
	if err != nil {
		return err
	}
	if _, err = ctl.call(ctx, &control.Request{Op: control.OpReset}); err != nil {
		return err
	}
	// The next dsec-init answers once it has started, which it would else do when it is claimed.
	c2, err := i.connect(ctx)
	if err != nil {
		return err
	}
	c2.Close()
	_, err = ctl.call(ctx, &control.Request{Op: control.OpStats}) // after what the connection's end set off
	return err
}

// audience hears of the command of a rehearsal.
type audience struct {
	exited chan wire.Exit
	closed chan error
}

var _ aether.Handler = (*audience)(nil)

func (a *audience) Output(string, int64, wire.Stream, []byte) {}
func (a *audience) SessionEnded(string, wire.Exit)            {}
func (a *audience) Closed(err error)                          { a.closed <- err }

func (a *audience) Exited(_ string, e wire.Exit) {
	select {
	case a.exited <- e:
	default: // told again
	}
}
