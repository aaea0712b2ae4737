package edge

import (
	"context"
	"errors"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// lateTimeout bounds the connection to an agent that has come late, lateRetry is the pause before the next try.
const (
	lateTimeout = 20 * time.Second
	lateRetry   = time.Second
)

// isBare tells whether an instance's answer to Connect means that it has no dsec-init.
func (b *box) isBare(err error) bool {
	return b.backend.Capabilities().NoAgent && errors.Is(err, sandbox.ErrUnsupported)
}

// watch ends the sandbox when its machine ends, and takes an agent into use that comes later; where there is a channel, its
// end shows the first, and there is no other.
func (b *box) watch(inst sandbox.Instance) {
	var up <-chan struct{} // nil: none ever comes
	if l, ok := inst.(sandbox.LateAgent); ok {
		up = l.AgentUp()
	}
	b.e.spawn(func() {
		select {
		case <-inst.Done():
			b.lost(inst, nil)
		case <-up:
			b.agentCame(inst)
		case <-b.gone:
		case <-b.e.closing:
		}
	})
}

// agentCame connects to an agent that was not there before.
func (b *box) agentCame(inst sandbox.Instance) {
	err := b.running(context.Background(), func() error {
		ctx, cancel := context.WithTimeout(context.Background(), lateTimeout)
		defer cancel()
		conn, err := inst.Connect(ctx)
		if err != nil {
			return err
		}
		b.mu.Lock()
		b.bare = false
		b.mu.Unlock()
		if err := b.attach(conn); err != nil {
			closeQuietly(conn)
			return err
		}
		return nil
	})
	if err == nil {
		return
	}
	b.e.log.Info("an agent does not answer", "sandbox", b.id, "err", err)
	b.mu.Lock()
	b.bare, b.conn = true, nil
	b.mu.Unlock()
	select { // a machine that opens its agent's port for nothing is not asked without pause
	case <-time.After(lateRetry):
	case <-inst.Done():
	case <-b.gone:
		return
	case <-b.e.closing:
		return
	}
	b.watch(inst)
}

// agentWent is called when the channel has ended with its agent and the machine lives: its system restarts, or has stopped
// the agent. What the agent ran is gone.
func (b *box) agentWent(inst sandbox.Instance) {
	f := sandbox.NewFailure(sandbox.KindInitKilled, "the agent inside has ended, with all that it ran: the system restarts, or has stopped it")
	b.mu.Lock()
	b.bare = true
	var running []*command
	for _, c := range b.commands {
		running = append(running, c)
	}
	var sessions []*session
	for _, s := range b.sessions {
		sessions = append(sessions, s)
	}
	b.mu.Unlock()
	for _, s := range sessions {
		s.finish(f)
	}
	for _, c := range running {
		b.endWith(c, f, 128+9, 9)
	}
	b.watch(inst)
}
