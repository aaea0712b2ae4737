package sandboxtest

import (
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// keep takes a snapshot, which is deleted at the test's end.
func (b *Box) keep(labels map[string]string) *dsecv1.Snapshot {
	b.T.Helper()
	resp, err := b.N.Snapshots.CreateSnapshot(b.Ctx, &dsecv1.CreateSnapshotRequest{SandboxId: b.ID, Labels: labels})
	if err != nil {
		b.T.Fatalf("snapshot: %v", err)
	}
	b.T.Cleanup(func() {
		_, err := b.N.Snapshots.DeleteSnapshot(Context(b.T), &dsecv1.DeleteSnapshotRequest{SnapshotId: resp.Snapshot.Id})
		if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
			b.T.Errorf("delete snapshot: %v", err)
		}
	})
	return resp.Snapshot
}

// fork makes children; all must succeed.
func (b *Box) fork(req *dsecv1.ForkSandboxRequest) (children []*Box) {
	b.T.Helper()
	req.SandboxId = b.ID
	resp, err := b.N.Snapshots.ForkSandbox(b.Ctx, req)
	if err != nil {
		b.T.Fatalf("fork: %v", err)
	}
	for _, r := range resp.Results {
		if r.Error != nil {
			b.T.Fatalf("fork: %v", r.Error)
		}
		children = append(children, b.N.Box(b.T, r.Sandbox))
	}
	return children
}

// from creates a sandbox of a snapshot.
func (s *suite) from(t *testing.T, snapshot string) *Box {
	t.Helper()
	spec := &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Snapshot: snapshot}, Limits: s.Factory.Limits}
	resp, err := s.Creator.CreateResolved(Context(t), &dsecv1.CreateResolvedRequest{Create: &dsecv1.CreateSandboxRequest{Spec: spec}, KeyId: "test"})
	if err != nil {
		t.Fatalf("create from snapshot: %v", err)
	}
	if r := resp.Response.Results[0]; r.Error != nil {
		t.Fatalf("create from snapshot: %v", r.Error)
	}
	return s.Box(t, resp.Response.Results[0].Sandbox)
}

// left names the snapshots that the backend still has.
func (s *suite) left(t *testing.T) []sandbox.SnapshotID {
	t.Helper()
	ids, err := s.Backend.(sandbox.Snapshotter).Snapshots()
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// keeps skips where disks cannot be kept, once that is said plainly.
func (s *suite) keeps(t *testing.T) {
	if s.caps.Snapshot {
		return
	}
	b := s.Create(t, nil)
	_, err := s.Snapshots.CreateSnapshot(b.Ctx, &dsecv1.CreateSnapshotRequest{SandboxId: b.ID})
	WantCode(t, err, connect.CodeUnimplemented, "cannot be kept")
	_, err = s.Snapshots.ForkSandbox(b.Ctx, &dsecv1.ForkSandboxRequest{SandboxId: b.ID})
	WantCode(t, err, connect.CodeUnimplemented, "cannot be kept")
	t.Skip("the driver keeps no disks")
}

func (s *suite) snapshots(t *testing.T) {
	s.keeps(t)
	b := s.Create(t, &dsecv1.SandboxSpec{Env: map[string]string{"A": "1"}})
	b.WantShell("echo one > /root/f; mkdir /root/d; echo x > /root/d/x; rm /etc/issue; sleep 1000 & echo ok", "ok\n")
	first := b.keep(map[string]string{"step": "1"})
	b.WantShell("echo two > /root/f; rm -r /root/d; echo ok", "ok\n")
	second := b.keep(map[string]string{"step": "2"})
	if first.SandboxId != b.ID || !first.Kept || first.Cost.GetFrozenUsec() <= 0 || !slices.Equal(first.Layers, b.Sandbox.Layers) {
		t.Errorf("snapshot: %v", first)
	}
	list, err := s.Snapshots.ListSnapshots(b.Ctx, &dsecv1.ListSnapshotsRequest{Labels: map[string]string{"step": "1"}})
	if err != nil || len(list.Snapshots) != 1 || list.Snapshots[0].Id != first.Id {
		t.Errorf("list by label: %v, %v", list, err)
	}
	b.Stop() // snapshots outlive what they were taken of
	old := s.from(t, first.Id)
	old.WantShell("cat /root/f /root/d/x; ls /etc/issue 2>/dev/null; pgrep -c sleep; echo $A", "one\nx\n"+s.kept("1", "0")+"\n\n") // env is the creation's
	old.WantShell("cat /etc/hostname; grep -c $(cat /etc/hostname) /etc/hosts", old.ID+"\n1\n")
	s.from(t, second.Id).WantShell("cat /root/f; ls /root", "two\nf\n")
	if _, err := s.Snapshots.DeleteSnapshot(b.Ctx, &dsecv1.DeleteSnapshotRequest{SnapshotId: first.Id}); err != nil {
		t.Fatal(err)
	}
	old.WantShell("cat /root/d/x", "x\n") // it goes on
	child := old.fork(&dsecv1.ForkSandboxRequest{})[0]
	child.WantShell("cat /root/d/x", "x\n")
	if got := child.Get().Snapshots; !s.caps.Memory && (len(got) != 2 || got[0] != first.Id) || s.caps.Memory && len(got) != 1 {
		t.Errorf("the child lies on %v", got)
	}
	_, err = s.Creator.CreateResolved(b.Ctx, &dsecv1.CreateResolvedRequest{Create: &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{
		Environment: &dsecv1.Environment{Snapshot: first.Id}}}})
	WantCode(t, err, connect.CodeNotFound, "snapshot "+first.Id)
	_, err = s.Creator.CreateResolved(b.Ctx, &dsecv1.CreateResolvedRequest{Create: &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{
		Environment: &dsecv1.Environment{Snapshot: second.Id, Base: "x"}}}})
	WantCode(t, err, connect.CodeInvalidArgument, "a snapshot stands alone")
	_, err = s.Snapshots.CreateSnapshot(b.Ctx, &dsecv1.CreateSnapshotRequest{SandboxId: b.ID})
	WantCode(t, err, connect.CodeFailedPrecondition, "ended at")
	_, err = s.Snapshots.DeleteSnapshot(b.Ctx, &dsecv1.DeleteSnapshotRequest{SnapshotId: "n"})
	WantCode(t, err, connect.CodeInvalidArgument, "snapshot id")

	paused := s.Create(t, nil)
	paused.WantShell("echo kept > /root/p", "")
	if _, err := s.Sandboxes.PauseSandbox(paused.Ctx, &dsecv1.PauseSandboxRequest{SandboxId: paused.ID}); err != nil {
		t.Fatal(err)
	}
	frozen := paused.keep(nil)
	if st := paused.Get().State; st != dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
		t.Errorf("a snapshot brought a paused sandbox to %v", st)
	}
	s.from(t, frozen.Id).WantShell("cat /root/p", "kept\n")
}

// kept is what is seen of a process in a copy of its sandbox.
func (s *suite) kept(withMemory, without string) string {
	if s.caps.Memory {
		return withMemory
	}
	return without
}

func (s *suite) forks(t *testing.T) {
	s.keeps(t)
	b := s.Create(t, &dsecv1.SandboxSpec{
		Env: map[string]string{"A": "1", "B": "2"}, Secrets: map[string]string{"KEY": "hush"}, Labels: map[string]string{"job": "j"},
		Workdir: "/tmp", TtlSeconds: proto.Float64(3000),
	})
	b.WantShell("echo base > /root/f; echo 10.0.0.1 db >> /etc/hosts; head -c 3M /dev/zero > /root/big; echo ok", "ok\n")
	req := &dsecv1.ForkSandboxRequest{Count: 3, Env: map[string]string{"B": "3"}, IdempotencyKey: "fork-" + b.ID, TtlSeconds: proto.Float64(100)}
	children := b.fork(req)
	if len(children) != 3 {
		t.Fatalf("%d children", len(children))
	}
	again, err := s.Snapshots.ForkSandbox(b.Ctx, req)
	if err != nil || len(again.Results) != 3 || again.Results[1].Sandbox.Id != children[1].ID {
		t.Errorf("the same fork again: %v, %v", again, err)
	}
	other := proto.Clone(req).(*dsecv1.ForkSandboxRequest)
	other.Count = 2
	_, err = s.Snapshots.ForkSandbox(b.Ctx, other)
	WantCode(t, err, connect.CodeAlreadyExists, "another body")
	for _, c := range children {
		c.WantShell("cat /root/f; echo $A$B$KEY; pwd; grep -cw db /etc/hosts; stat -c %s /root/big", "base\n13hush\n/tmp\n1\n3145728\n")
		c.WantShell("cat /etc/hostname; grep -c "+b.ID+" /etc/hosts; true", c.ID+"\n0\n")
		if sb := c.Sandbox; sb.Spec.Labels["job"] != "j" || sb.Spec.GetTtlSeconds() != 100 || !proto.Equal(sb.Spec.Limits, b.Sandbox.Spec.Limits) ||
			!slices.Equal(sb.SecretNames, []string{"KEY"}) || strings.Contains(sb.String(), "hush") {
			t.Errorf("child: %v", sb)
		}
	}
	children[0].WantShell("echo zero > /root/f; rm /root/big; cat /root/f", "zero\n")
	children[1].WantShell("cat /root/f; ls /root", "base\nbig\nf\n")
	b.WantShell("cat /root/f", "base\n")
	grand := children[0].fork(&dsecv1.ForkSandboxRequest{Labels: map[string]string{"job": "k"}})[0]
	grand.WantShell("cat /root/f; ls /root", "zero\nf\n")
	if grand.Sandbox.Spec.Labels["job"] != "k" {
		t.Errorf("labels of the grandchild: %v", grand.Sandbox.Spec.Labels)
	}
	// A child is charged for its own changes only, where its disk lies on the snapshot's.
	stats, err := s.Sandboxes.GetSandboxStats(b.Ctx, &dsecv1.GetSandboxStatsRequest{SandboxId: children[1].ID})
	if err != nil || !s.caps.Memory && stats.Stats.DiskBytes > 1<<20 {
		t.Errorf("a child without changes uses %d bytes, %v", stats.GetStats().GetDiskBytes(), err)
	}
	for _, bad := range []struct {
		req  *dsecv1.ForkSandboxRequest
		text string
	}{
		{&dsecv1.ForkSandboxRequest{Count: -1}, "count is -1"},
		{&dsecv1.ForkSandboxRequest{Count: 1001}, "count is 1001"},
		{&dsecv1.ForkSandboxRequest{TtlSeconds: proto.Float64(0)}, "ttl_seconds is 0"},
		{&dsecv1.ForkSandboxRequest{Env: map[string]string{"a=b": "x"}}, "a=b"},
	} {
		bad.req.SandboxId = b.ID
		_, err := s.Snapshots.ForkSandbox(b.Ctx, bad.req)
		WantCode(t, err, connect.CodeInvalidArgument, bad.text)
	}
	before := len(s.left(t))
	for _, c := range append(children, grand) {
		c.Stop()
	}
	if left := s.left(t); len(left) != before-2 {
		t.Errorf("the children have ended, but their snapshots have not: %d before, %v now", before, left)
	}
	b.Stop()
	_, err = s.Snapshots.ForkSandbox(b.Ctx, &dsecv1.ForkSandboxRequest{SandboxId: b.ID})
	WantCode(t, err, connect.CodeFailedPrecondition, "ended at")
}

// snapshotRestart: another edge takes over; snapshots, and what is made of them, go on.
func (s *suite) snapshotRestart(t *testing.T) {
	s.keeps(t)
	b := s.Create(t, &dsecv1.SandboxSpec{Secrets: map[string]string{"KEY": "hush"}})
	b.WantShell("echo 1 > /root/f", "")
	kept := b.keep(nil)
	child := b.fork(&dsecv1.ForkSandboxRequest{})[0]
	before := s.left(t)
	s.Restart()
	if left := s.left(t); len(left) != len(before) {
		t.Errorf("after the restart: %v, before %v", left, before)
	}
	child.WantShell("cat /root/f; echo $KEY", "1\nhush\n")
	s.from(t, kept.Id).WantShell("cat /root/f", "1\n")
	_, err := s.Snapshots.ForkSandbox(b.Ctx, &dsecv1.ForkSandboxRequest{SandboxId: b.ID})
	WantCode(t, err, connect.CodeFailedPrecondition, `give "KEY" again`)
	b.fork(&dsecv1.ForkSandboxRequest{Secrets: map[string]string{"KEY": "new"}})[0].WantShell("echo $KEY", "new\n")
	child.Stop()
	s.Restart()
	if list, err := s.Snapshots.ListSnapshots(b.Ctx, &dsecv1.ListSnapshotsRequest{SandboxId: b.ID}); err != nil || len(list.Snapshots) != 1 {
		t.Errorf("kept after two restarts: %v, %v", list, err)
	}
}
