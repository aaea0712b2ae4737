package sandboxtest

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

func idOf(b *Box) sandbox.ID { return sandbox.ID(b.ID) }

func (s *suite) events(t *testing.T) {
	label := map[string]string{"suite": "events"}
	t.Run("Recorded", func(t *testing.T) {
		b := s.Create(t, &dsecv1.SandboxSpec{Labels: label})
		b.Shell("exit 3")
		_, err := s.Sandboxes.ExtendSandbox(b.Ctx, &dsecv1.ExtendSandboxRequest{SandboxId: b.ID, TtlSeconds: proto.Float64(100)})
		if err != nil {
			t.Fatal(err)
		}
		b.Stop()
		all := b.Events(0)
		var types []string
		for i, ev := range all {
			types = append(types, ev.Type)
			if ev.Sequence != int64(i+1) || ev.SandboxId != b.ID || ev.At == nil {
				t.Errorf("event %d: %v", i, ev)
			}
		}
		want := []string{"created", "ready", "command_started", "command_ended", "extended", "stopping", "ended"}
		if !slices.Equal(types, want) {
			t.Errorf("types %v, want %v", types, want)
		}
		if got := all[3].Attributes; got["exit_code"] != "3" || got["kind"] != "exited" || got["blame"] != "task" {
			t.Errorf("command_ended: %v", got)
		}
		if rest := b.Events(5); len(rest) != 2 || rest[0].Sequence != 6 {
			t.Errorf("after 5: %v", rest)
		}
	})
	t.Run("Followed", func(t *testing.T) {
		b := s.Create(t, &dsecv1.SandboxSpec{Labels: label})
		ctx, cancel := context.WithCancel(b.Ctx)
		defer cancel()
		st, err := s.Sandboxes.StreamEvents(ctx, &dsecv1.StreamEventsRequest{SandboxId: b.ID, Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		var types []string
		for st.Receive() {
			ev := st.Msg().Event
			types = append(types, ev.Type)
			if ev.Type == "ready" {
				b.Shell("true")
				b.Stop()
			}
		}
		// The stream of an ended sandbox ends.
		if err := st.Err(); err != nil {
			t.Error(err)
		}
		if want := []string{"created", "ready", "command_started", "command_ended", "stopping", "ended"}; !slices.Equal(types, want) {
			t.Errorf("types %v, want %v", types, want)
		}
	})
	t.Run("ByLabel", func(t *testing.T) {
		ctx, cancel := context.WithCancel(Context(t))
		defer cancel()
		mine := map[string]string{"suite": "by-label"}
		st, err := s.Sandboxes.StreamEvents(ctx, &dsecv1.StreamEventsRequest{Labels: mine, Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		other := s.Create(t, &dsecv1.SandboxSpec{Labels: label})
		b := s.Create(t, &dsecv1.SandboxSpec{Labels: mine})
		other.Stop()
		b.Stop()
		for st.Receive() {
			ev := st.Msg().Event
			if ev.SandboxId != b.ID {
				t.Errorf("event of another sandbox: %v", ev)
			}
			if ev.Type == "ended" {
				return
			}
		}
		t.Errorf("the stream ended: %v", st.Err())
	})
	t.Run("Stats", func(t *testing.T) {
		b := s.Create(t, nil)
		resp, err := s.Sandboxes.GetSandboxStats(b.Ctx, &dsecv1.GetSandboxStatsRequest{SandboxId: b.ID})
		if err != nil {
			t.Fatal(err)
		}
		st, limits := resp.Stats, b.Sandbox.Spec.Limits
		if st.MemoryBytes <= 0 || st.MemoryLimitBytes != limits.MemoryBytes || st.PidsLimit != limits.Pids || st.At == nil {
			t.Errorf("stats %v of limits %v", st, limits)
		}
	})
	t.Run("Node", func(t *testing.T) {
		node, err := s.Nodes.GetNode(Context(t), &dsecv1.GetNodeRequest{})
		if err != nil || node.MemoryBytes <= 0 || node.Kernel == "" || node.Edge != string(s.ID) {
			t.Errorf("node %v, %v", node, err)
		}
		found := false
		for _, c := range node.GetStages() {
			found = found || c.Stage == "create.total" && c.Count > 0 && c.P99Usec >= c.P50Usec
		}
		if !found {
			t.Errorf("stages %v", node.GetStages())
		}
	})
}
