package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// Monitor runs commands of a machine's monitor.
type Monitor interface {
	// Do runs a command and reads its result into out, unless that is nil.
	Do(ctx context.Context, command string, args, out any) error
	// Pass runs a command with a file that it is about.
	Pass(ctx context.Context, command string, args any, file *os.File) error
}

// stateFile is what QEMU calls the file that a machine's state goes through.
const stateFile = "state"

// unbounded is the rate at which a machine is saved, bytes a second.
const unbounded = 1 << 40

// poll is how often a monitor is asked for what it has no event for.
const poll = 2 * time.Millisecond

// Save makes QEMU tell the state of a machine that stands still. What take leaves unread makes it fail. The machine stands
// still afterwards, "postmigrate".
func Save(ctx context.Context, m Monitor, take func(io.Reader) error) error {
	if err := m.Do(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": int64(unbounded)}, nil); err != nil {
		return err
	}
	nc, err := statePipe(ctx, m)
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := m.Do(ctx, "migrate", map[string]any{"uri": "fd:" + stateFile}, nil); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := take(nc); err != nil {
		return err
	}
	for {
		var q struct {
			Status string `json:"status"`
			Desc   string `json:"error-desc"`
		}
		if err := m.Do(ctx, "query-migrate", nil, &q); err != nil {
			return err
		}
		switch q.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("save the machine: %s", q.Desc)
		}
		if err := wait(ctx); err != nil {
			return err
		}
	}
}

// Load gives a QEMU that was started for it, with -incoming defer, the state that give writes. The machine stands still then.
func Load(ctx context.Context, m Monitor, give func(io.Writer) error) error {
	// Nobody is to be told that a hardware address has moved.
	if err := m.Do(ctx, "migrate-set-parameters", map[string]any{"announce-rounds": 0}, nil); err != nil {
		return err
	}
	nc, err := statePipe(ctx, m)
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := m.Do(ctx, "migrate-incoming", map[string]any{"uri": "fd:" + stateFile}, nil); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := errors.Join(give(nc), nc.Close()); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	for {
		status, err := Status(ctx, m)
		if err != nil {
			return fmt.Errorf("restore: %w", err)
		}
		if status != "inmigrate" {
			return nil
		}
		if err := wait(ctx); err != nil {
			return err
		}
	}
}

// statePipe hands QEMU one end of a connection for a state, and returns the other.
func statePipe(ctx context.Context, m Monitor) (net.Conn, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	theirs, ours := os.NewFile(uintptr(fds[0]), "state"), os.NewFile(uintptr(fds[1]), "state")
	defer theirs.Close()
	nc, err := net.FileConn(ours)
	if err = errors.Join(err, ours.Close()); err != nil {
		return nil, err
	}
	if err := m.Pass(ctx, "getfd", map[string]any{"fdname": stateFile}, theirs); err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}

func wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(poll):
		return nil
	}
}
