package edge_test

import (
	"slices"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// TestEventsKeepTheirOrder: who follows sees a command's end before the end of its sandbox, however long what comes after
// the former takes.
func TestEventsKeepTheirOrder(t *testing.T) {
	n := sandboxtest.Start(t, fakeFactory(), nil)
	b := n.Create(t, nil)
	st, err := n.Sandboxes.StreamEvents(b.Ctx, &dsecv1.StreamEventsRequest{SandboxId: b.ID, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := failpoint.Set("command.before_release=wait=2s@1"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = failpoint.Set("") }()
	answered := make(chan error, 1)
	go func() {
		_, err := n.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: &dsecv1.CommandSpec{Shell: "exit 3"}})
		answered <- err
	}()
	sandboxtest.Eventually(t, "the command's end is recorded", func() bool {
		return slices.ContainsFunc(b.Events(0), func(e *dsecv1.Event) bool { return e.Type == "command_ended" })
	})
	b.Stop()
	var types []string
	for st.Receive() {
		if ev := st.Msg().Event; ev != nil {
			types = append(types, ev.Type)
		}
	}
	if err := st.Err(); err != nil {
		t.Error(err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if want := []string{"created", "ready", "command_started", "command_ended", "stopping", "ended"}; !slices.Equal(types, want) {
		t.Errorf("types %v, want %v", types, want)
	}
}
