package sandboxtest

import (
	"slices"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

func (s *suite) creation(t *testing.T) {
	t.Run("Batch", func(t *testing.T) {
		labels := map[string]string{"batch": t.Name()}
		req := s.Request(&dsecv1.SandboxSpec{Labels: labels})
		req.Create.Count = 5
		resp, err := s.Creator.CreateResolved(Context(t), req)
		if err != nil || len(resp.Response.Results) != 5 {
			t.Fatalf("%v, %v", resp, err)
		}
		var ids []string
		for _, r := range resp.Response.Results {
			if r.Error != nil || r.Sandbox.State != dsecv1.SandboxState_SANDBOX_STATE_RUNNING {
				t.Errorf("result %v", r)
				continue
			}
			ids = append(ids, r.Sandbox.Id)
		}
		var listed []string
		for token := ""; ; {
			list, err := s.Sandboxes.ListSandboxes(Context(t), &dsecv1.ListSandboxesRequest{Labels: labels, PageSize: 2, PageToken: token})
			if err != nil || len(list.Sandboxes) > 2 {
				t.Fatalf("%v, %v", list, err)
			}
			for _, x := range list.Sandboxes {
				listed = append(listed, x.Id)
			}
			if token = list.NextPageToken; token == "" {
				break
			}
		}
		slices.Sort(ids)
		slices.Sort(listed)
		if !slices.Equal(ids, listed) {
			t.Errorf("made %v, listed %v", ids, listed)
		}
		stopped, err := s.Sandboxes.StopSandboxes(Context(t), &dsecv1.StopSandboxesRequest{Labels: labels})
		if err != nil || !slices.Equal(stopped.StoppedIds, ids) {
			t.Errorf("stopped %v, %v", stopped, err)
		}
		list, err := s.Sandboxes.ListSandboxes(Context(t), &dsecv1.ListSandboxesRequest{Labels: labels})
		if err != nil || len(list.Sandboxes) != 0 {
			t.Errorf("left %v, %v", list, err)
		}
		list, err = s.Sandboxes.ListSandboxes(Context(t), &dsecv1.ListSandboxesRequest{Labels: labels, States: []dsecv1.SandboxState{dsecv1.SandboxState_SANDBOX_STATE_STOPPED}})
		if err != nil || len(list.Sandboxes) != 5 {
			t.Errorf("ended %v, %v", list, err)
		}
	})
	t.Run("Idempotency", func(t *testing.T) {
		ask := func(spec *dsecv1.SandboxSpec) (string, error) {
			req := s.Request(spec)
			req.Create.IdempotencyKey = t.Name()
			resp, err := s.Creator.CreateResolved(Context(t), req)
			if err != nil {
				return "", err
			}
			return resp.Response.Results[0].GetSandbox().GetId(), nil
		}
		first, err := ask(&dsecv1.SandboxSpec{Labels: map[string]string{"a": "1"}})
		if err != nil || first == "" {
			t.Fatal(err)
		}
		again, err := ask(&dsecv1.SandboxSpec{Labels: map[string]string{"a": "1"}})
		if err != nil || again != first {
			t.Errorf("again %s, first %s, %v", again, first, err)
		}
		_, err = ask(&dsecv1.SandboxSpec{Labels: map[string]string{"a": "2"}})
		WantCode(t, err, connect.CodeAlreadyExists, "another body")
		if _, err := s.Sandboxes.StopSandbox(Context(t), &dsecv1.StopSandboxRequest{SandboxId: first}); err != nil {
			t.Error(err)
		}
	})
	t.Run("Defaults", func(t *testing.T) {
		b := s.Create(t, &dsecv1.SandboxSpec{Hostname: "my-host", IdleTimeoutSeconds: proto.Float64(0)})
		got := b.Sandbox
		l := got.Spec.Limits
		if l.MemoryBytes <= 0 || l.Pids <= 0 || l.CpuMillis <= 0 || l.DiskBytes <= 0 || got.ReadyAt == nil || got.Edge != string(s.ID) {
			t.Errorf("sandbox %v", got)
		}
		if s.caps.Real {
			b.WantShell("hostname", "my-host\n")
		}
	})
}
