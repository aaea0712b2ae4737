package lazy

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	lazylayer "github.com/opendsec/dsec/layer/lazy"
)

// sums is a command that reads much, in an order of its own: nobody reads ahead for it.
const sums = "cd /usr/bin && ls | sort -r | head -150 | xargs md5sum | sort | md5sum"

// TestFromS3: a node's layers lie in S3, and what is moved is what is read. blobd and edge may be killed meanwhile.
func TestFromS3(t *testing.T) {
	n := start(t)
	if s := n.stats(); s.FetchedBytes != 0 {
		t.Errorf("%d bytes fetched before anything ran", s.FetchedBytes)
	}
	id := n.create()
	n.must(id, "true")
	s := n.stats()
	if s.FetchedBytes == 0 || s.FetchedBytes > 64<<20 {
		t.Errorf("%d bytes fetched for a first command", s.FetchedBytes)
	}
	t.Logf("first command: %+v", s)
	// Killed again and again while programs read: they wait, and see nothing.
	var wg sync.WaitGroup
	got := make([]string, 3)
	for i := range got {
		id := n.create()
		wg.Go(func() {
			r, err := n.exec(id, sums)
			if err != nil {
				t.Errorf("beside kills: %v", err)
				return
			}
			if end := r.GetCommand().GetResult().GetEnd(); end.GetKind() != "exited" || r.GetCommand().GetResult().GetExitCode() != 0 {
				t.Errorf("beside kills: %v %s", end, r.GetStderr())
			}
			got[i] = string(r.GetStdout())
		})
	}
	n.kill9("blobd")
	n.stats()
	n.kill9("edge")
	n.kill9("blobd")
	wg.Wait()
	if got[0] == "" || got[0] != got[1] || got[0] != got[2] {
		t.Errorf("sums differ: %q", got)
	}
	// A whole new node process tree on the same cache: hold and the mounts are new.
	before := n.must(id, sums)
	if left, err := n.Stop(); err != nil || len(left) > 0 {
		t.Fatalf("stop: %v, left %q", err, left)
	}
	n.up()
	id = n.create()
	if after := n.must(id, sums); after != before {
		t.Errorf("%q before, %q after the node was started again", before, after)
	}
	s = n.stats()
	// What was on its way when blobd was killed is not in it, nor what is read ahead for the first time.
	if s.Cache.Hits == 0 || s.FetchedBytes > s.Cache.HitBytes/2 {
		t.Errorf("the cache was not used again: %+v", s)
	}
	var tr lazylayer.Trace
	var all []string
	if err := n.ask("/v1/lazy/layers", &all); err != nil || len(all) != 1 {
		t.Fatalf("layers %v, %v", all, err)
	}
	if err := n.ask("/v1/lazy/layers/"+all[0]+"/trace", &tr); err != nil || tr.ReadBytes == 0 || tr.ReadBytes >= tr.DataBytes {
		t.Errorf("trace %+v, %v", tr, err)
	}
	t.Logf("read %.1f %% of the layer", 100*tr.Share)
}

// TestStoreFault: the store is away for longer than readers wait. What was read goes on, what was not fails, and is not
// the task's fault; when the store is back so is everything, in the same sandbox.
func TestStoreFault(t *testing.T) {
	n := start(t)
	id := n.create()
	n.must(id, "true; cat /bin/true >/dev/null")
	if kind, blame := n.ends(id, "exit 7"); kind != "exited" || blame != dsecv1.Blame_BLAME_TASK {
		t.Errorf("a failure while all is well: %s, %v", kind, blame)
	}
	if err := n.s3.Stop(); err != nil {
		t.Fatal(err)
	}
	n.must(id, "true; cat /bin/true >/dev/null")
	for name, shell := range map[string]string{"read": "cat /usr/lib/x86_64-linux-gnu/libstdc++.so.6 >/dev/null", "executed": "exec /usr/bin/perl -e 1"} {
		if kind, blame := n.ends(id, shell); kind != "store_fault" || blame != dsecv1.Blame_BLAME_INFRA {
			t.Errorf("what could not be %s: %s, %v", name, kind, blame)
		}
	}
	// Without a shell in between: it is dsec-init that cannot execute it.
	limit := 90.0
	r, err := n.Client.Commands.Exec(t.Context(), &dsecv1.ExecRequest{SandboxId: id, OperationId: client.NewOperationID(),
		Command: &dsecv1.CommandSpec{Argv: []string{"/usr/bin/tar", "--version"}, TimeoutSeconds: &limit}})
	if err != nil {
		t.Fatal(err)
	}
	if end := r.GetCommand().GetResult().GetEnd(); end.GetKind() != "store_fault" || end.GetBlame() != dsecv1.Blame_BLAME_INFRA {
		t.Errorf("what could not be started: %v", end)
	}
	if kind, blame := n.ends(id, "exit 7"); kind != "exited" || blame != dsecv1.Blame_BLAME_TASK {
		t.Errorf("a failure of its own: %s, %v", kind, blame)
	}
	eventually(t, "it is among the events", func() bool { return strings.Contains(n.events(id), "store_fault") })
	if e := n.events(id); !strings.Contains(e, "name=base debian") || !strings.Contains(e, "what=read_failed") {
		t.Errorf("its event does not say what it was:\n%s", e)
	}
	// The edge's memory of it is in the file.
	n.kill9("edge")
	eventually(t, "the edge is back", func() bool { _, err := n.exec(id, "true"); return err == nil })
	if kind, _ := n.ends(id, "cat /usr/bin/perl > /dev/null"); kind != "store_fault" {
		t.Errorf("after the edge's death: %s", kind)
	}
	if err := n.s3.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The kernel asks again for what failed a moment ago: such reads fail at once, for half a second.
	eventually(t, "the same sandbox reads on", func() bool {
		r, err := n.exec(id, "cat /usr/bin/perl >/dev/null && perl -e 'print 1'")
		return err == nil && r.GetCommand().GetResult().GetExitCode() == 0
	})
}

// TestNobodyServes: blobd is stopped, so that it neither serves nor is replaced. hold answers in its place: the command
// ends, as the platform's fault. When it goes on, all is well.
func TestNobodyServes(t *testing.T) {
	n := start(t)
	id := n.create()
	n.must(id, "true; cat /bin/true >/dev/null")
	pid := n.role("blobd")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	kind, blame := n.ends(id, "cat /usr/bin/perl >/dev/null")
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if kind != "store_fault" || blame != dsecv1.Blame_BLAME_INFRA {
		t.Errorf("%s, %v", kind, blame)
	}
	if took := time.Since(begin); took > 10*timeout {
		t.Errorf("it took %v", took)
	}
	n.must(id, "cat /usr/bin/perl >/dev/null; perl -e 'print 1'")
}

// TestDamage: bits flip in the cache, and then in the store. Neither is served.
func TestDamage(t *testing.T) {
	n := start(t)
	id := n.create()
	want := n.must(id, "md5sum < /usr/bin/perl")
	flip(t, filepath.Join(n.state, "lazy", "chunks", "??", "*"))
	// A new node has nothing of it in memory.
	if left, err := n.Stop(); err != nil || len(left) > 0 {
		t.Fatalf("stop: %v, left %q", err, left)
	}
	n.up()
	id = n.create()
	if got := n.must(id, "md5sum < /usr/bin/perl"); got != want {
		t.Errorf("%q from a damaged cache, want %q", got, want)
	}
	if s := n.stats(); s.Cache.Damaged == 0 || s.Faults != 0 {
		t.Errorf("%+v", s)
	}
	eventually(t, "the repaired cache is among the events", func() bool { return strings.Contains(n.events(id), "what=cache_damaged") })
	flip(t, filepath.Join(n.s3.Dir, bucket, "team", "layers", "*", "data"))
	if kind, _ := n.ends(id, "cat /usr/lib/x86_64-linux-gnu/libstdc++.so.6 >/dev/null"); kind != "store_fault" {
		t.Errorf("what is damaged in the store ends as %s", kind)
	}
	if s := n.stats(); s.StoreDamaged == 0 || s.Faults == 0 {
		t.Errorf("%+v", s)
	}
	eventually(t, "the damaged store is among the events", func() bool { return strings.Contains(n.events(id), "what=store_damaged") })
	if log, err := os.ReadFile(filepath.Join(n.state, "log", "blobd.log")); err != nil || !strings.Contains(string(log), "damaged chunk") {
		t.Errorf("nothing of it in the log: %v", err)
	}
}
