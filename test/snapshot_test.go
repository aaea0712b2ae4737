package test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/failpoint"
)

// snapshots lists all snapshots of the node, those for forks and packs too.
func (n *node) snapshots() []*dsecv1.Snapshot {
	n.t.Helper()
	r, err := n.Client.Snapshots.ListSnapshots(n.t.Context(), &dsecv1.ListSnapshotsRequest{All: true})
	if err != nil {
		n.t.Fatal(err)
	}
	return r.Snapshots
}

// pack packs until it works: an edge or blobd that is killed in between is no reason to give up.
func (n *node) pack(ctx context.Context, req *dsecv1.PackDiffRequest) *dsecv1.PackResult {
	n.t.Helper()
	for {
		r, err := n.Client.PackDiff(ctx, req, nil)
		if err == nil {
			return r
		}
		if ctx.Err() != nil {
			n.t.Fatalf("pack: %v", err)
		}
		time.Sleep(100 * time.Millisecond) // between attempts
	}
}

// TestPackAndFork: what a sandbox changed is restored from layers alone, links, modes and removals too; of forks all that
// they were forked from as well.
func TestPackAndFork(t *testing.T) {
	n := startNode(t)
	id := n.create(1, nil)[0]
	n.must(id, "mkdir /work && echo 1 > /work/a && ln /work/a /work/b && ln -s a /work/c && head -c 5M /dev/urandom > /work/big && rm -r /usr/share/doc && chmod 1700 /work")
	sum := n.must(id, "cd /work && sha256sum big && stat -c %a /work && stat -c %h a")
	r := n.pack(t.Context(), &dsecv1.PackDiffRequest{SandboxId: id, Name: "it"})
	restored := n.create(1, func(s *dsecv1.SandboxSpec) { s.Environment = r.Environment })[0]
	if got := n.must(restored, "cd /work && sha256sum big && stat -c %a /work && stat -c %h a"); got != sum {
		t.Errorf("restored: %q, was %q", got, sum)
	}
	if got := n.must(restored, "readlink /work/c; ls /usr/share/doc 2>&1 | head -1"); !strings.Contains(got, "No such file") || !strings.HasPrefix(got, "a\n") {
		t.Errorf("restored: %q", got)
	}
	// A pack of a fork holds what it was forked from as well.
	made, err := n.Client.Fork(t.Context(), &dsecv1.ForkSandboxRequest{SandboxId: restored})
	if err != nil {
		t.Fatal(err)
	}
	n.must(restored, "echo later > /work/later")
	n.must(made[0].Id, "echo forked > /work/forked; rm /work/big")
	grand, err := n.Client.Fork(t.Context(), &dsecv1.ForkSandboxRequest{SandboxId: made[0].Id})
	if err != nil {
		t.Fatal(err)
	}
	n.must(grand[0].Id, "echo grand > /work/grand; echo more >> /work/forked; rm /work/a")
	r = n.pack(t.Context(), &dsecv1.PackDiffRequest{SandboxId: grand[0].Id, Name: "it"})
	// What two generations wrote is told once.
	want := []string{"-/work/a", "-/work/big", "/work/forked", "/work/grand"}
	if rep := r.GetReport(); rep.GetFiles() != 2 || rep.GetRemoved() != 2 || !slices.Equal(slices.Sorted(slices.Values(rep.GetNames())), want) {
		t.Errorf("report: %v", rep)
	}
	again := n.create(1, func(s *dsecv1.SandboxSpec) { s.Environment = r.Environment })[0]
	if got := n.must(again, "ls /work"); got != "b\nc\nforked\ngrand\n" {
		t.Errorf("a pack of a grandchild holds %q", got)
	}
	n.stopAll()
	if left := n.snapshots(); len(left) != 0 {
		t.Errorf("snapshots are left: %v", left)
	}
}

// TestKilledDuringSnapshots kills the edge at each step of a snapshot, a fork and a pack, and blobd during a pack. The
// sandbox is never left frozen, and nothing is left behind.
func TestKilledDuringSnapshots(t *testing.T) {
	n := startNode(t)
	id := n.create(1, nil)[0]
	n.must(id, "echo 1 > /f; head -c 30M /dev/urandom > /big")
	for _, point := range []string{"snapshot.recorded", "container/snapshot_flushed", "container/snapshot_frozen", "container/snapshot_taken", "pack.taken"} {
		t.Run(point, func(t *testing.T) {
			n.crash()
			t.Setenv(failpoint.EnvVar, point+"=kill@2")
			n.up()
			edge := n.processes()["edge"]
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for range 2 { // the first passes
				n.pack(ctx, &dsecv1.PackDiffRequest{SandboxId: id, Name: "killed"})
			}
			made, err := n.Client.Fork(ctx, &dsecv1.ForkSandboxRequest{SandboxId: id, Count: 2})
			if err != nil || len(made) != 2 {
				t.Fatalf("fork: %v, %v", made, err)
			}
			if n.processes()["edge"] == edge {
				t.Error("the edge was not killed")
			}
			for _, c := range made {
				if got := n.must(c.Id, "cat /f"); got != "1\n" {
					t.Errorf("child: %q", got)
				}
				if _, err := n.Client.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: c.Id}); err != nil {
					t.Error(err)
				}
			}
			if got := n.must(id, "cat /f"); got != "1\n" { // it runs
				t.Errorf("the original: %q", got)
			}
			if left := n.snapshots(); len(left) != 0 {
				t.Errorf("snapshots are left: %v", left)
			}
		})
	}
	n.crash()
	t.Setenv(failpoint.EnvVar, "")
	n.up()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	packed := make(chan *dsecv1.PackResult)
	go func() { packed <- n.pack(ctx, &dsecv1.PackDiffRequest{SandboxId: id, Name: "killed"}) }()
	n.kill9(n.processes()["blobd"])
	r := <-packed
	if r.GetReport().GetFiles() < 2 {
		t.Errorf("packed: %v", r)
	}
	n.stopAll()
	eventually(t, "nothing half-made is left", func() bool { return len(n.snapshots()) == 0 && len(n.parts()) <= 8 })
}
