package edge_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fake"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// slowAnswers is a world whose machines do not open their channels in time as long as slow is set.
type slowAnswers struct {
	slow atomic.Bool
	mu   sync.Mutex
	open []net.Conn
	late chan struct{} // told of each attempt
}

func (s *slowAnswers) options() fake.Options {
	return fake.Options{
		Hook: func(operation string, _ sandbox.ID) error {
			if operation != "connect" || !s.slow.Load() {
				return nil
			}
			select {
			case s.late <- struct{}{}:
			default:
			}
			return fmt.Errorf("no answer: %w", context.DeadlineExceeded)
		},
		Wrap: func(_ sandbox.ID, c net.Conn) net.Conn {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.open = append(s.open, c)
			return c
		},
	}
}

// cut ends all channels.
func (s *slowAnswers) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.open {
		c.Close()
	}
	s.open = nil
}

// TestSlowAnswers: a sandbox whose machine runs and only takes its time goes on, whether the edge is new or its channel has
// ended; one that never answers ends as what it is within the limit.
func TestSlowAnswers(t *testing.T) {
	s := &slowAnswers{late: make(chan struct{})}
	n := sandboxtest.Start(t, factoryOf(s.options()), func(c *edge.Config) { c.AnswerLimit = 30 * time.Second })
	b := n.Create(t, nil)
	st := b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Argv: []string{"cat"}, KeepStdinOpen: true}})
	id := st.Next().GetStarted().GetId()
	st.Close()
	wantAlive := func(what string) {
		t.Helper()
		if got := b.Get(); got.State != dsecv1.SandboxState_SANDBOX_STATE_RUNNING {
			t.Fatalf("%s: %v", what, got)
		}
	}
	s.slow.Store(true)
	n.Restart()
	<-s.late
	wantAlive("after a restart")
	s.slow.Store(false)
	input := func() error {
		_, err := n.Commands.SendInput(b.Ctx, &dsecv1.SendInputRequest{SandboxId: b.ID, CommandId: id, Writer: "w", Data: []byte("x")})
		return err
	}
	await := func() {
		t.Helper()
		for deadline := time.Now().Add(sandboxtest.Timeout); input() != nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(input())
			}
		}
	}
	await()
	s.slow.Store(true)
	s.cut()
	<-s.late
	<-s.late
	wantAlive("after its channel ended")
	s.slow.Store(false)
	await()
}

// TestNeverAnswers: the limit ends it.
func TestNeverAnswers(t *testing.T) {
	s := &slowAnswers{late: make(chan struct{})}
	n := sandboxtest.Start(t, factoryOf(s.options()), func(c *edge.Config) { c.AnswerLimit = 500 * time.Millisecond })
	b := n.Create(t, nil)
	s.slow.Store(true)
	s.cut()
	end := b.AwaitEnd().End
	if end.Kind != string(sandbox.KindInitKilled) || end.Message != "its dsec-init does not answer" {
		t.Errorf("ended as %v", end)
	}
}

// TestWantedWhileUnanswered: a paused sandbox that did not answer a new edge, and does when it is wanted, has one channel: the
// attempt that is still to come does not take it away.
func TestWantedWhileUnanswered(t *testing.T) {
	s := &slowAnswers{late: make(chan struct{})}
	var opened atomic.Int64
	o := s.options()
	o.Wrap = func(_ sandbox.ID, c net.Conn) net.Conn { opened.Add(1); return c }
	const again = 300 * time.Millisecond // between attempts
	n := sandboxtest.Start(t, factoryOf(o), func(c *edge.Config) {
		c.PauseKeepsMemory, c.AnswerLimit = time.Hour, 24*again
	})
	b := n.Create(t, nil)
	b.Pause()
	s.slow.Store(true)
	n.Restart()
	<-s.late
	s.slow.Store(false)
	before := opened.Load()
	b.WantShell("echo up", "up\n")
	for deadline := time.Now().Add(4 * again); time.Now().Before(deadline); {
		b.WantShell("echo up", "up\n")
	}
	if got := opened.Load() - before; got != 1 {
		t.Errorf("%d channels were opened, not one", got)
	}
}
