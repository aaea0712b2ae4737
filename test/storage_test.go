package test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
)

// smallDisk makes a file system of its own with so many bytes, and returns where it is mounted.
func smallDisk(t *testing.T, size int64) string {
	t.Helper()
	work, err := os.MkdirTemp("", "dsd-")
	if err != nil {
		t.Fatal(err)
	}
	image, at := filepath.Join(work, "image"), filepath.Join(work, "m")
	run := func(words ...string) {
		t.Helper()
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", words, err, out)
		}
	}
	run("truncate", "-s", fmt.Sprint(size), image)
	run("mkfs.ext4", "-q", "-m", "0", image)
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	run("mount", "-o", "loop", image, at)
	t.Cleanup(func() {
		run("umount", at)
		_ = os.RemoveAll(work)
	})
	return at
}

// fill takes all room of a file system but so many bytes, and returns what gives it back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, piece := range []int{1 << 20, 4 << 10, 1} {
		b := make([]byte, piece)
		for {
			if _, err := f.Write(b); err != nil {
				break
			}
		}
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

// TestNodeDiskFull: the disk with the node's state has no room left. What runs goes on, what cannot be recorded is
// refused and said not to be the task's fault; when there is room again, all is as before.
func TestNodeDiskFull(t *testing.T) {
	disk := smallDisk(t, 1900<<20)
	n := startNodeAt(t, filepath.Join(disk, "s"), "--opt", "pool=300m")
	ids := n.create(2, nil)
	counter, err := n.Client.Start(t.Context(), ids[0], &dsecv1.CommandSpec{Shell: "i=0; while [ $i -lt 200 ]; do echo $i; i=$((i+1)); sleep 0.05; done; sleep 1000"})
	if err != nil {
		t.Fatal(err)
	}
	free := fill(t, disk)
	// Inside there is room: the pool's is reserved.
	for range 5 {
		r, err := n.exec(ids[1], "head -c 5000000 /dev/urandom > /tmp/x && echo well")
		switch {
		case err == nil && string(r.GetStdout()) == "well\n":
		case err == nil && r.GetCommand().GetResult().GetEnd().GetBlame() == dsecv1.Blame_BLAME_INFRA:
		case err != nil && (connect.CodeOf(err) == connect.CodeUnavailable || connect.CodeOf(err) == connect.CodeResourceExhausted):
			t.Log(client.Message(err))
		default:
			t.Errorf("a command on a full disk: %v, %v", r.GetCommand().GetResult(), err)
		}
	}
	c, err := client.New(client.Options{Config: n.config(), Patience: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 10 {
		boxes, err := c.Create(t.Context(), &dsecv1.CreateSandboxRequest{Spec: spec()})
		if err == nil {
			ids = append(ids, boxes[0].GetId())
		} else if !strings.Contains(err.Error(), "disk of the node's records is full") {
			t.Errorf("a creation on a full disk: %v", err)
		} else {
			t.Log(client.Message(err))
		}
	}
	if _, err := n.Client.Sandboxes.ListSandboxes(t.Context(), &dsecv1.ListSandboxesRequest{}); err != nil {
		t.Errorf("list: %v", err)
	}
	// The edge comes back on a full disk, too.
	n.kill9(n.processes()["edge"])
	if got := n.list(running); len(got) != len(ids) {
		t.Errorf("%d running after the edge's death, want %d", len(got), len(ids))
	}
	free()
	for _, id := range ids {
		eventually(t, "it serves again", func() bool { r, err := n.exec(id, "echo well"); return err == nil && string(r.GetStdout()) == "well\n" })
	}
	n.create(1, nil)
	got, err := n.Client.Commands.GetCommand(t.Context(), &dsecv1.GetCommandRequest{SandboxId: ids[0], CommandId: counter.GetId()})
	if err != nil || got.GetCommand().GetResult() != nil {
		t.Errorf("the command that ran through it: %v, %v", got, err)
	}
	n.stopAll()
}

// TestPoolFull: sandboxes whose limits together exceed the pool fill it. Nobody's files are harmed, a creation is
// refused in clear words, and room that is given back can be used.
func TestPoolFull(t *testing.T) {
	n := startNodeAt(t, "", "--opt", "pool=320m")
	start := time.Now()
	big := func(s *dsecv1.SandboxSpec) { s.Limits.DiskBytes = 200 << 20 }
	ids := n.create(3, big)
	neighbour := n.create(1, nil)[0]
	n.must(neighbour, "echo kept > /kept")
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			r, err := n.exec(id, "timeout -s KILL 6 dd if=/dev/urandom of=/big bs=4M count=45 status=none; stat -c %s /big")
			if err != nil {
				t.Errorf("fill: %v", err)
				return
			}
			t.Logf("%s %s %v", strings.TrimSpace(string(r.GetStdout())), strings.TrimSpace(string(r.GetStderr())), r.GetCommand().GetResult().GetEnd())
		})
	}
	wg.Wait()
	t.Logf("%v: full", time.Since(start))
	if out := n.must(neighbour, "cat /kept; echo well"); out != "kept\nwell\n" {
		t.Errorf("the neighbour: %q", out)
	}
	c, err := client.New(client.Options{Config: n.config(), Patience: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 12 { // more than shells are ready
		boxes, err := c.Create(t.Context(), &dsecv1.CreateSandboxRequest{Spec: spec()})
		switch {
		case err == nil:
			if _, err := n.Client.Sandboxes.StopSandbox(t.Context(), &dsecv1.StopSandboxRequest{SandboxId: boxes[0].GetId()}); err != nil {
				t.Error(err)
			}
		case strings.Contains(err.Error(), "the writable-layer pool") && strings.Contains(err.Error(), "exhausted"):
			t.Log(client.Message(err))
		default:
			t.Errorf("a creation on a full pool: %v", err)
		}
	}
	for _, id := range ids {
		if _, err := n.Client.Sandboxes.StopSandbox(t.Context(), &dsecv1.StopSandboxRequest{SandboxId: id}); err != nil {
			t.Errorf("stop: %v", err)
		}
	}
	t.Logf("%v: stopped", time.Since(start))
	eventually(t, "there is room again", func() bool {
		r, err := n.exec(neighbour, "head -c 30000000 /dev/urandom > /again && sync && sha256sum /again >/dev/null && echo well; rm -f /again")
		return err == nil && string(r.GetStdout()) == "well\n"
	})
	t.Logf("%v: there is room", time.Since(start))
	var id string
	eventually(t, "creations are taken again", func() bool {
		boxes, err := c.Create(t.Context(), &dsecv1.CreateSandboxRequest{Spec: spec()})
		if err == nil {
			id = boxes[0].GetId()
		}
		return err == nil
	})
	if err := n.Client.WriteFile(t.Context(), id, "/tmp/new", client.WriteOptions{}, io.LimitReader(dense{}, 20<<20)); err != nil {
		t.Error(err)
	}
	n.stopAll()
}

// stopAll stops the test's sandboxes.
func (n *node) stopAll() {
	n.t.Helper()
	if _, err := n.Client.Sandboxes.StopSandboxes(n.t.Context(), &dsecv1.StopSandboxesRequest{Labels: map[string]string{"job": "test"}}); err != nil {
		n.t.Error(err)
	}
}
