package hold

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// Options of a holder.
type Options struct {
	// Lapsed is called, in a goroutine of its own, when the lease on a held descriptor was not renewed in time: its
	// user is dead or stuck. ctx is done when it is renewed or dropped. The file stays the holder's. nil = leases
	// are accepted and nothing follows from them.
	Lapsed func(ctx context.Context, name string, f *os.File)
}

// lease is the promise of a descriptor's user to come back.
type lease struct {
	timer *time.Timer
	stop  context.CancelFunc // of Lapsed; nil = not called
}

// renew begins or renews a lease; s.mu is held.
func (s *server) renew(name, millis string) string {
	n, err := strconv.ParseInt(millis, 10, 64)
	if err != nil || n <= 0 {
		return "bad request"
	}
	if s.held[name] == nil {
		return "none"
	}
	s.endLease(name)
	l := &lease{}
	l.timer = time.AfterFunc(time.Duration(n)*time.Millisecond, func() { s.lapse(name, l) })
	s.leases[name] = l
	return "ok"
}

// endLease forgets a lease; s.mu is held.
func (s *server) endLease(name string) {
	if l := s.leases[name]; l != nil {
		l.timer.Stop()
		if l.stop != nil {
			l.stop()
		}
		delete(s.leases, name)
	}
}

func (s *server) lapse(name string, l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases[name] != l || s.o.Lapsed == nil || s.closed {
		return
	}
	f, err := linux.DupFile(s.held[name]) // it may be dropped meanwhile
	if err != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	s.wg.Go(func() {
		defer f.Close()
		defer stop()
		s.o.Lapsed(ctx, name, f)
	})
}

// Lease promises that the user of a held descriptor renews this within d; else the holder does what it was told to
// do then (Options.Lapsed), until the next Lease. Errors: sandbox.ErrNotFound when it is not held (any more),
// sandbox.ErrUnsupported by a holder of an earlier version.
func (h *Client) Lease(name string, d time.Duration) error {
	if h == nil {
		return nil
	}
	reply, _, err := h.ask(fmt.Sprintf("lease %d %s", max(1, d.Milliseconds()), name))
	switch {
	case err != nil:
		return err
	case reply == "none":
		return fmt.Errorf("held %s: %w", name, sandbox.ErrNotFound)
	case reply != "ok":
		return fmt.Errorf("lease %s: %w: the holder says %q", name, sandbox.ErrUnsupported, reply)
	}
	return nil
}

// cutLease splits the request "MILLIS NAME".
func cutLease(s string) (name, millis string) {
	millis, name, _ = strings.Cut(s, " ")
	return name, millis
}
