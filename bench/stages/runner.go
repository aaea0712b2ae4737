package main

import (
	"context"
	"fmt"

	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/sandbox"
)

// runner runs one command after another in a sandbox, over its channel. It implements aether.Handler.
type runner struct {
	inst sandbox.Instance
	conn *aether.Conn
	exit chan wire.Exit
	gone chan error
}

func open(ctx context.Context, inst sandbox.Instance) (*runner, error) {
	conn, err := inst.Connect(ctx)
	if err != nil {
		return nil, err
	}
	r := &runner{inst: inst, conn: conn, exit: make(chan wire.Exit, 1), gone: make(chan error, 1)}
	conn.Serve(r)
	return r, nil
}

// exec runs a program, which must exit with 0, in a control group of its own.
func (r *runner) exec(ctx context.Context, id string, argv ...string) error {
	g, err := r.inst.Group(ctx, id)
	if err != nil {
		return err
	}
	defer g.CloseFiles()
	if _, err := r.conn.Start(ctx, &wire.Start{ID: id, Argv: argv}, g.Files()); err != nil {
		return err
	}
	select {
	case e := <-r.exit:
		if e.Code != 0 || e.Signal != 0 {
			return fmt.Errorf("%s ended with %+v", argv[0], e)
		}
		return nil
	case err := <-r.gone:
		return fmt.Errorf("the channel closed: %w", err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *runner) close() { _ = r.conn.Close() }

// Output drops what a command says, so that it never waits for us.
func (r *runner) Output(command string, offset int64, _ wire.Stream, data []byte) {
	r.conn.Ack(command, offset+int64(len(data)))
}

// Exited passes a command's end on.
func (r *runner) Exited(command string, e wire.Exit) {
	r.conn.Release(command)
	select {
	case r.exit <- e:
	default: // one runs at a time: it was told already
	}
}

// SessionEnded concerns no command of ours.
func (r *runner) SessionEnded(string, wire.Exit) {}

// Closed ends who waits for a command.
func (r *runner) Closed(err error) { r.gone <- err }
