package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
)

func setting(name string, def int) int {
	if v, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return v
	}
	return def
}

// counter prints numbered lines, ten a second. It waits without a process of its own: hundreds that fork ten times a
// second measure the machine's forks and nothing else.
func counter(lines int) string {
	return fmt.Sprintf("exec 3<> <(:); i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); read -t 0.1 -u 3; done; true", lines)
}

func counted(lines int) []byte {
	var b bytes.Buffer
	for i := range lines {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.Bytes()
}

// TestKilledUnderLoad runs counters in many sandboxes and kills the platform's processes, one by one and all
// together, the supervisor too. No sandbox ends, and each line appears exactly once: in the client that attached
// again, and in the record.
//
// DSEC_ROBUST_N sandboxes (40), DSEC_ROBUST_DOWN seconds without any process (3).
func TestKilledUnderLoad(t *testing.T) {
	n := startNode(t)
	count, down := setting("DSEC_ROBUST_N", 40), setting("DSEC_ROBUST_DOWN", 3)
	lines := 150 + 10*down
	ids := n.create(count, nil)
	// One sandbox's time runs out while nobody is there to see it.
	ttl := 10.0
	doomed := n.create(1, func(s *dsecv1.SandboxSpec) { s.TtlSeconds = &ttl })[0]

	type watched struct {
		command string
		out     bytes.Buffer
		end     *dsecv1.Command
		err     error
	}
	all := make([]watched, count)
	started := make(chan struct{}, count)
	var wg sync.WaitGroup
	c, err := client.New(client.Options{Config: n.config(), Patience: 3 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for i, id := range ids {
		wg.Add(1)
		go func() {
			defer wg.Done()
			w := &all[i]
			first := true
			w.end, w.err = c.Run(ctx, client.Run{SandboxID: id, Spec: &dsecv1.CommandSpec{Shell: counter(lines)},
				Started: func(cmd *dsecv1.Command) {
					w.command = cmd.GetId()
					if first {
						first = false
						started <- struct{}{}
					}
				},
				Output: func(o *dsecv1.Output) error {
					if o.GetCutBytes() != 0 || o.GetOffset() != int64(w.out.Len()) {
						return fmt.Errorf("offset %d after %d bytes, %d cut", o.GetOffset(), w.out.Len(), o.GetCutBytes())
					}
					w.out.Write(o.GetData())
					return nil
				}})
		}()
	}
	for range count {
		select {
		case <-started:
		case <-ctx.Done():
			t.Fatal("not all commands started")
		}
	}

	pause := func() { time.Sleep(time.Duration(200+rand.IntN(1500)) * time.Millisecond) } // any instant: that is the test
	for _, victims := range [][]string{{"edge"}, {"apiserver"}, {"blobd"}, {"engine"}, {"edge", "apiserver"}, {"edge"}} {
		pause()
		p := n.processes()
		for _, v := range victims {
			n.kill9(p[v])
		}
	}
	pause()
	p := n.processes()
	n.kill9(p["up"], p["edge"], p["apiserver"], p["blobd"], p["engine"])
	time.Sleep(time.Duration(down) * time.Second)
	n.up()

	wg.Wait()
	want := counted(lines)
	for i := range all {
		w := &all[i]
		if w.err != nil {
			t.Errorf("sandbox %d: %v", i, w.err)
			continue
		}
		if k := w.end.GetResult().GetEnd().GetKind(); k != "exited" || w.end.GetResult().GetExitCode() != 0 {
			t.Errorf("sandbox %d: %v", i, w.end.GetResult())
		}
		if !bytes.Equal(w.out.Bytes(), want) {
			t.Errorf("sandbox %d: the client saw %d bytes, want %d", i, w.out.Len(), len(want))
		}
		var rec bytes.Buffer
		if _, err := n.Client.Attach(ctx, ids[i], w.command, 0, func(o *dsecv1.Output) error {
			if o.GetCutBytes() != 0 {
				return errors.New("cut")
			}
			rec.Write(o.GetData())
			return nil
		}); err != nil {
			t.Errorf("sandbox %d: read the record: %v", i, err)
		}
		if !bytes.Equal(rec.Bytes(), want) {
			t.Errorf("sandbox %d: the record has %d bytes, want %d", i, rec.Len(), len(want))
		}
	}
	// All of them still serve.
	for _, id := range ids {
		if out := n.must(id, "echo still"); out != "still\n" {
			t.Errorf("%s says %q", id, out)
		}
	}
	r, err := n.Client.Sandboxes.GetSandbox(ctx, &dsecv1.GetSandboxRequest{SandboxId: doomed})
	if err != nil || r.GetSandbox().GetEnd().GetKind() != "ttl_expired" {
		t.Errorf("the one whose time ran out: %v, %v", r.GetSandbox(), err)
	}
}

// TestInitKilledIsReported: the death of one dsec-init ends that sandbox only, within a second, with its cause.
func TestInitKilledIsReported(t *testing.T) {
	n := startNode(t)
	ids := n.create(2, nil)
	victim := ids[0]
	pids, err := n.initPIDs(victim)
	if err != nil || len(pids) != 1 {
		t.Fatalf("dsec-init of %s: %v, %v", victim, pids, err)
	}
	var start time.Time
	end, err := n.Client.Run(t.Context(), client.Run{SandboxID: victim, Spec: &dsecv1.CommandSpec{Shell: "sleep 1000"},
		Started: func(*dsecv1.Command) {
			start = time.Now()
			n.kill9(pids...)
		}})
	took := time.Since(start)
	if err != nil {
		t.Fatal(err)
	}
	if k := end.GetResult().GetEnd(); k.GetKind() != "init_killed" || k.GetBlame() != dsecv1.Blame_BLAME_TASK {
		t.Errorf("the command's end: %v", k)
	}
	for deadline := time.Now().Add(30 * time.Second); ; { // its parts are being removed meanwhile
		r, err := n.Client.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: victim})
		if err != nil {
			t.Fatal(err)
		}
		if r.GetSandbox().GetState() == dsecv1.SandboxState_SANDBOX_STATE_STOPPED {
			if k := r.GetSandbox().GetEnd(); k.GetKind() != "init_killed" {
				t.Errorf("the sandbox's end: %v", k)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the sandbox does not end: %v", r.GetSandbox())
		}
	}
	t.Logf("reported after %v", took)
	if _, err := n.exec(victim, "true"); err == nil {
		t.Error("a dead sandbox takes commands")
	} else {
		t.Log(client.Message(err))
	}
	n.must(ids[1], "true")
}
