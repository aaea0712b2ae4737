package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// Ask runs a command of a machine's monitor and reads its result.
type Ask func(ctx context.Context, command string, args, out any) error

// Names of sockets in a machine's directory while its state is saved or restored.
const (
	incomingName = "incoming"
	outgoingName = "outgoing"
)

// unbounded is the rate at which a machine is saved, bytes a second.
const unbounded = 1 << 40

// poll is how often a monitor is asked for what it has no event for.
const poll = 2 * time.Millisecond

// Save makes QEMU tell the whole state of a machine that stands still, whose directory is dir. What take leaves unread makes
// it fail. The machine stands still afterwards, "postmigrate".
func Save(ctx context.Context, ask Ask, dir string, take func(io.Reader) error) error {
	if err := ask(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": int64(unbounded)}, nil); err != nil {
		return err
	}
	at, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer at.Close()
	path := fmt.Sprintf("/proc/self/fd/%d/%s", at.Fd(), outgoingName) // socket addresses end at 108 bytes
	_ = os.Remove(path)                                               // of a process that was killed
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := ask(ctx, "migrate", map[string]any{"uri": "unix:" + outgoingName}, nil); err != nil {
		return err
	}
	nc, err := l.Accept()
	if err != nil {
		return err
	}
	defer nc.Close()
	stopRead := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer stopRead()
	if err := take(nc); err != nil {
		return err
	}
	for {
		var m struct {
			Status string `json:"status"`
			Desc   string `json:"error-desc"`
		}
		if err := ask(ctx, "query-migrate", nil, &m); err != nil {
			return err
		}
		switch m.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("save the machine: %s", m.Desc)
		}
		if err := wait(ctx); err != nil {
			return err
		}
	}
}

// Load gives a QEMU that was started for it, with -incoming defer, the state that give writes. The machine stands still then.
func Load(ctx context.Context, ask Ask, dir string, give func(io.Writer) error) error {
	// Nobody is to be told that a hardware address has moved.
	if err := ask(ctx, "migrate-set-parameters", map[string]any{"announce-rounds": 0}, nil); err != nil {
		return err
	}
	if err := ask(ctx, "migrate-incoming", map[string]any{"uri": "unix:" + incomingName}, nil); err != nil {
		return err
	}
	nc, err := Dial(ctx, dir, incomingName)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := errors.Join(give(nc), nc.Close()); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	for {
		var s struct {
			Status string `json:"status"`
		}
		if err := ask(ctx, "query-status", nil, &s); err != nil {
			return fmt.Errorf("restore: %w", err)
		}
		if s.Status != "inmigrate" {
			return nil
		}
		if err := wait(ctx); err != nil {
			return err
		}
	}
}

func wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(poll):
		return nil
	}
}
