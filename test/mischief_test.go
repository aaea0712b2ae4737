package test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
)

// recordBytes is the size of a sandbox's record on the node.
func (n *node) recordBytes(id string) (size int64) {
	n.t.Helper()
	err := filepath.Walk(filepath.Join(n.state, "edge", "sandboxes", id), func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return size
}

// TestOutput: floods, bytes and silence.
func TestOutput(t *testing.T) {
	n := startNode(t)
	id := n.create(1, nil)[0]
	t.Run("Yes", func(t *testing.T) {
		r := n.run(t, id, 60*time.Second, "sh", "-c", "yes | head -c 300000000; echo end >&2; exit 3")
		res := r.GetCommand().GetResult()
		if res.GetExitCode() != 3 || res.GetOutputBytes() != 300_000_004 || res.GetOutputCutBytes() <= 0 || string(r.GetStderr()) != "end\n" {
			t.Errorf("%v, stderr %q", res, r.GetStderr())
		}
		if size := n.recordBytes(id); size > 64<<20 {
			t.Errorf("the record takes %d bytes", size)
		}
	})
	t.Run("NobodyReads", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var streams []*connect.ServerStreamForClient[dsecv1.StartCommandResponse]
		for range 4 {
			s, err := n.Client.Commands.StartCommand(ctx, &dsecv1.StartCommandRequest{SandboxId: id, OperationId: client.NewOperationID(),
				Command: &dsecv1.CommandSpec{Shell: "head -c 200000000 /dev/zero; echo done > /tmp/done$$"}})
			if err != nil {
				t.Fatal(err)
			}
			if !s.Receive() { // and no more
				t.Fatal(s.Err())
			}
			streams = append(streams, s)
		}
		// They run to their end all the same.
		eventually(t, "all end", func() bool { return n.must(id, "ls /tmp | grep -c done || true") == "4\n" })
		cancel()
		for _, s := range streams {
			_ = s.Close()
		}
		n.must(id, "rm /tmp/done*")
	})
	t.Run("Binary", func(t *testing.T) {
		r := n.run(t, id, 30*time.Second, "sh", "-c", "head -c 700000 /dev/urandom | tee /tmp/bytes")
		sum := n.must(id, "sha256sum < /tmp/bytes")
		if got := fmt.Sprintf("%x", sha256.Sum256(r.GetStdout())); !strings.HasPrefix(sum, got) {
			t.Errorf("%d bytes of sum %s, want %s", len(r.GetStdout()), got, sum)
		}
	})
	t.Run("Closed", func(t *testing.T) {
		r := n.run(t, id, 30*time.Second, "sh", "-c", "echo before; exec <&- >&- 2>&-; sleep 1; exit 7")
		if r.GetCommand().GetResult().GetExitCode() != 7 || string(r.GetStdout()) != "before\n" || r.GetCommand().GetResult().GetDurationSeconds() < 1 {
			t.Errorf("%v", r)
		}
	})
	t.Run("LongLine", func(t *testing.T) {
		r := n.run(t, id, 30*time.Second, "python3", "-c", `import sys; sys.stdout.write("x"*900000)`)
		if len(r.GetStdout()) != 900_000 {
			t.Errorf("%d bytes, %v", len(r.GetStdout()), r.GetCommand().GetResult())
		}
	})
}

// escapes are ways to get away from the end of one's command.
var escapes = map[string]string{
	"IgnoresSignals": "trap '' TERM INT HUP QUIT; while :; do sleep 1000; done",
	"Daemonises":     "(setsid setsid sh -c 'exec </dev/null >/dev/null 2>&1; sleep 1000' &) ; sleep 1000",
	"DoubleForks":    `python3 -c 'import os,time` + "\n" + `while True:` + "\n" + ` if os.fork()==0:` + "\n" + `  os.setsid()` + "\n" + `  if os.fork()==0: time.sleep(1000)` + "\n" + `  os._exit(0)` + "\n" + ` os.wait(); time.sleep(0.01)'`,
	"Stops":          "kill -STOP $$",
}

// TestTimeoutTakesTheTree: whatever a command does to get away, its timeout takes all of it.
func TestTimeoutTakesTheTree(t *testing.T) {
	n := startNode(t)
	for name, script := range escapes {
		t.Run(name, func(t *testing.T) {
			id := n.create(1, nil)[0]
			r := n.run(t, id, time.Second, "sh", "-c", script)
			if k := r.GetCommand().GetResult().GetEnd().GetKind(); k != "timed_out" {
				t.Errorf("ended as %v", r.GetCommand().GetResult())
			}
			eventually(t, "all of it is gone", func() bool { return n.must(id, "pgrep -c 'sleep|python3' || true") == "0\n" })
		})
	}
	id := n.create(1, nil)[0]
	start := time.Now()
	stubborn, err := n.Client.Start(t.Context(), id, &dsecv1.CommandSpec{Shell: escapes["IgnoresSignals"]})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Client.Sandboxes.StopSandbox(t.Context(), &dsecv1.StopSandboxRequest{SandboxId: id}); err != nil {
		t.Fatal(err)
	}
	end, err := n.Client.Attach(t.Context(), id, stubborn.GetId(), 0, nil)
	if err != nil || end.GetResult().GetEnd().GetKind() != "stopped" {
		t.Errorf("%v, %v", end, err)
	}
	t.Logf("stopped in %v", time.Since(start))
}

// TestManyCommands: parallel ones, background ones by the thousand, and more than may run at once.
func TestManyCommands(t *testing.T) {
	n := startNode(t)
	id := n.create(1, func(s *dsecv1.SandboxSpec) { s.Limits.Pids = 3000 })[0]
	neighbour := n.create(1, nil)[0]
	total := 1500
	if slow {
		total = 10_000
	}
	t.Run("Parallel", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				want := fmt.Sprintln("command", i)
				if r, err := n.exec(id, "echo command "+fmt.Sprint(i)); err != nil || string(r.GetStdout()) != want {
					t.Errorf("%d: %v, %v", i, r, err)
				}
			})
		}
		wg.Wait()
	})
	t.Run("Background", func(t *testing.T) {
		turns := make(chan struct{}, 32)
		var wg sync.WaitGroup
		for i := range total {
			turns <- struct{}{}
			wg.Go(func() {
				defer func() { <-turns }()
				if _, err := n.Client.Start(t.Context(), id, &dsecv1.CommandSpec{Argv: []string{"true"}}); err != nil {
					t.Errorf("%d: %v", i, err)
				}
			})
		}
		wg.Wait()
		eventually(t, "all end", func() bool {
			r, err := n.Client.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: id})
			if err != nil {
				t.Fatal(err)
			}
			return r.GetSandbox().GetRunningCommands() == 0
		})
		n.answers(t, neighbour)
		eventually(t, "their groups are removed", func() bool { return len(n.commandGroups(id)) == 0 })
	})
	t.Run("TooMany", func(t *testing.T) {
		refused, started := 0, 0
		turns := make(chan struct{}, 32)
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 1100 {
			turns <- struct{}{}
			wg.Go(func() {
				defer func() { <-turns }()
				_, err := n.Client.Start(t.Context(), id, &dsecv1.CommandSpec{Argv: []string{"sleep", "1000"}})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					started++
				case connect.CodeOf(err) == connect.CodeResourceExhausted:
					refused++
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if started != 1024 || refused != 76 {
			t.Errorf("%d started, %d refused", started, refused)
		}
		n.answers(t, neighbour)
	})
	if _, err := n.Client.Sandboxes.StopSandbox(t.Context(), &dsecv1.StopSandboxRequest{SandboxId: id}); err != nil {
		t.Error(err)
	}
}

// cutReader is an upload that breaks off after n bytes.
type cutReader struct{ n int }

var errCut = errors.New("cut")

func (r *cutReader) Read(p []byte) (int, error) {
	if r.n <= 0 {
		return 0, errCut
	}
	m := min(len(p), r.n)
	r.n -= m
	return m, nil
}

// TestCutUploads: clients that vanish in the middle of large uploads leave nothing behind in the sandbox.
func TestCutUploads(t *testing.T) {
	n := startNode(t)
	id := n.create(1, nil)[0]
	if err := n.Client.WriteFile(t.Context(), id, "/data/keep", client.WriteOptions{Parents: true}, strings.NewReader("old")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var body io.Reader = &cutReader{n: 5 << 20}
			if i%2 == 0 { // gone without a word
				body = io.MultiReader(io.LimitReader(zeros{}, 5<<20), readerFunc(func([]byte) (int, error) { cancel(); return 0, ctx.Err() }))
			}
			if err := n.Client.WriteFile(ctx, id, "/data/keep", client.WriteOptions{}, body); err == nil {
				t.Error("a cut upload was taken")
			}
			if err := n.Client.PutArchive(t.Context(), id, "/data", "", &cutReader{n: 3 << 20}); err == nil {
				t.Error("a cut archive was taken")
			}
		})
	}
	wg.Wait()
	eventually(t, "nothing is left", func() bool { return n.must(id, "find /data -type f -size +0; cat /data/keep") == "/data/keep\nold" })
	// More than fits: refused as full, nothing left.
	err := n.Client.WriteFile(t.Context(), id, "/data/big", client.WriteOptions{}, io.LimitReader(dense{}, 200<<20))
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("more than the disk holds: %v", err)
	}
	if out := n.must(id, "find /data /tmp -type f -size +0"); out != "/data/keep\n" {
		t.Errorf("afterwards: %q", out)
	}
	// The pool gives room back with its next transaction.
	eventually(t, "there is room again", func() bool {
		r, err := n.exec(id, "echo x > /data/fits")
		return err == nil && r.GetCommand().GetResult().GetExitCode() == 0
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// dense yields bytes that do not compress.
type dense struct{}

func (dense) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i * 7)
	}
	return len(p), nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestManyCreations: hundreds at once, far more than shells are ready. All succeed, or are refused in clear words;
// of those who went away nothing stays.
func TestManyCreations(t *testing.T) {
	n := startNode(t)
	const total, parallel = 300, 64
	var mu sync.Mutex
	var ids []string
	turns := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i := range total {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			gone := i%10 == 9
			if gone { // leaves at some moment of it, without a key; not when the answer is already on its way
				time.AfterFunc(time.Duration(i%7)*time.Millisecond, cancel)
				s := spec()
				if r, err := n.Client.Sandboxes.CreateSandbox(ctx, &dsecv1.CreateSandboxRequest{Spec: s}); err == nil {
					mu.Lock()
					ids = append(ids, r.GetResults()[0].GetSandbox().GetId())
					mu.Unlock()
				}
				return
			}
			boxes, err := n.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Spec: spec()})
			if err != nil {
				t.Errorf("%d: %v", i, err)
				return
			}
			mu.Lock()
			ids = append(ids, boxes[0].GetId())
			mu.Unlock()
			if i%5 == 0 {
				n.must(boxes[0].GetId(), "true")
			}
		})
	}
	wg.Wait()
	t.Logf("%d made, %d are running", len(ids), len(n.list(running)))
	eventually(t, "those who left leave nothing", func() bool { return len(n.list(running)) == len(ids) })
	r, err := n.Client.Sandboxes.StopSandboxes(t.Context(), &dsecv1.StopSandboxesRequest{Labels: map[string]string{"job": "test"}})
	if err != nil || len(r.GetStoppedIds()) != len(ids) {
		t.Errorf("stopped %d of %d: %v", len(r.GetStoppedIds()), len(ids), err)
	}
	if left := n.list(running); len(left) != 0 {
		t.Errorf("left: %d", len(left))
	}
	eventually(t, "only ready shells are left", func() bool { return len(n.parts()) <= 8+4 })
}
