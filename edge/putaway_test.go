package edge_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fake"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// TestWantedWhileSaved: who wants a sandbox that is being put away does not wait for that, and finds it as it was.
func TestWantedWhileSaved(t *testing.T) {
	saving := make(chan struct{})
	var begun atomic.Bool
	n := sandboxtest.Start(t, factoryOf(fake.Options{Hook: func(op string, _ sandbox.ID) error {
		if op == "save" && begun.CompareAndSwap(false, true) {
			close(saving)
			return fake.ErrHang
		}
		return nil
	}}), sandboxtest.Keeping(1))
	b := n.Create(t, nil)
	id := b.Detach(&dsecv1.CommandSpec{Argv: []string{"cat"}, KeepStdinOpen: true}).Id
	b.Pause()
	<-saving
	if _, err := n.Sandboxes.ResumeSandbox(b.Ctx, &dsecv1.ResumeSandboxRequest{SandboxId: b.ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Commands.SendInput(b.Ctx, &dsecv1.SendInputRequest{SandboxId: b.ID, CommandId: id, Data: []byte("on"), Close: true}); err != nil {
		t.Fatal(err)
	}
	if text, _ := sandboxtest.Text(b.Attach(&dsecv1.AttachCommandRequest{CommandId: id}).All(), 0); text != "on" {
		t.Errorf("output %q", text)
	}
	for _, ev := range b.Events(0) {
		if ev.Type == "save_failed" {
			t.Errorf("nothing has failed: %v", ev)
		}
	}
	b.Pause()
	b.AwaitSaved()
}

// TestNotSaved: a sandbox that cannot be put away stays paused in memory, says so, and is one that any request wakes; one that
// cannot be brought back stays as it is, until it can.
func TestNotSaved(t *testing.T) {
	var fails atomic.Value
	fails.Store("save")
	n := sandboxtest.Start(t, factoryOf(fake.Options{Hook: func(op string, _ sandbox.ID) error {
		if op == fails.Load() {
			return errors.New("no room, as it is tested")
		}
		return nil
	}}), sandboxtest.Keeping(1))
	b := n.Create(t, nil)
	b.Pause()
	said := func() bool {
		for _, ev := range b.Events(0) {
			if ev.Type == "save_failed" {
				return true
			}
		}
		return false
	}
	sandboxtest.Eventually(t, "it says that it stays in memory", said)
	if now := b.Get(); now.Saved || now.State != dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
		t.Errorf("not put away: %v", now)
	}
	b.WantShell("echo up", "up\n")
	fails.Store("connect")
	b.Pause()
	b.AwaitSaved()
	if _, err := n.Sandboxes.ResumeSandbox(b.Ctx, &dsecv1.ResumeSandboxRequest{SandboxId: b.ID}); err == nil {
		t.Error("resumed without a connection")
	}
	b.AwaitSaved()
	fails.Store("")
	b.WantShell("echo up", "up\n")
}

// TestNoRoomToSave: that there is no room to put a sandbox away is told once, and it is put away when there is; so it is after the next pause.
func TestNoRoomToSave(t *testing.T) {
	var tried atomic.Int32
	n := sandboxtest.Start(t, factoryOf(fake.Options{Hook: func(op string, _ sandbox.ID) error {
		if op != "save" {
			return nil
		}
		if k := tried.Add(1); k%4 != 0 {
			return fmt.Errorf("%w: %d bytes are used", sandbox.ErrExhausted, k)
		}
		return nil
	}}), func(c *edge.Config) { c.PauseKeepsMemory, c.SaveRetry = 1, time.Millisecond })
	b := n.Create(t, nil)
	for round := range 2 {
		b.Pause()
		b.AwaitSaved()
		var told []string
		for _, ev := range b.Events(0) {
			if ev.Type == "save_failed" {
				told = append(told, ev.Message)
			}
		}
		if got, want := tried.Load(), int32(4*(round+1)); got != want || len(told) != round+1 || !strings.Contains(told[round], fmt.Sprintf("%d bytes are used", 4*round+1)) {
			t.Errorf("tried %d times, want %d: %q", got, want, told)
		}
		b.WantShell("echo up", "up\n")
	}
}

// TestEndsWhileSaved: the end of a machine is told that is put away, by an edge that never had a connection to it, too; and who
// is to keep its memory does.
func TestEndsWhileSaved(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), sandboxtest.Keeping(1))
	killed := n.Create(t, nil)
	killed.Pause()
	killed.AwaitSaved()
	n.Restart()
	killed.AwaitSaved()
	n.Backend.(*fake.Backend).Machine(sandbox.ID(killed.ID)).Kill()
	if end := killed.AwaitEnd().End; end.Kind != "init_killed" {
		t.Errorf("its machine has ended: %v", end)
	}
	kept := sandboxtest.Start(t, fakeFactory(), sandboxtest.Keeping(time.Hour)).Create(t, nil)
	kept.Pause()
	if kept.Get().Saved {
		t.Error("put away before its time")
	}
}
