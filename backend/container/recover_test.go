package container

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/sandbox"
)

// abandon lets go of everything without ending anything, as the death of the process would.
func (d *Driver) abandon() {
	d.warm.mu.Lock()
	ready := d.warm.ready
	d.warm.ready = nil
	d.instances = map[sandbox.ID]*instance{}
	d.warm.mu.Unlock()
	for _, sh := range append(ready, d.warm.close()...) {
		sh.release()
		sh.conn.Close()
		d.watch.Remove(sh.pidfd)
		sh.pidfd.Close()
	}
	d.closeParts()
}

// TestRecover lets go of a driver without a word, as kill -9 would, and opens another on its state.
func TestRecover(t *testing.T) {
	b := newBed(t, nil)
	i := b.create(nil)
	id, handle := i.ID(), i.Handle()
	other := b.create(nil)
	c := connect(t, i)
	c.must("echo kept > /kept; (sleep 1000 &) ; true")
	c.conn.Close()

	b.d.abandon()
	b.open()
	r, err := b.d.Recover(t.Context(), id, handle)
	if err != nil {
		t.Fatal(err)
	}
	removed, err := b.d.Sweep(t.Context(), func(s sandbox.ID) bool { return s == id })
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(removed, " "), string(other.ID())) {
		t.Fatalf("swept %v, want %s among them", removed, other.ID())
	}
	c = connect(t, r)
	if out := c.must("cat /kept; pgrep -c sleep"); out != "kept\n1\n" {
		t.Fatalf("after recovery: %q", out)
	}
	if _, err := b.d.Recover(t.Context(), other.ID(), other.Handle()); !errors.Is(err, sandbox.ErrNotFound) {
		t.Fatalf("recover what was swept: %v", err)
	}
	if err := r.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestInitKilled: the end of dsec-init is the end of the sandbox, reported with its cause.
func TestInitKilled(t *testing.T) {
	b := newBed(t, nil)
	i := b.create(nil)
	neighbour := connect(t, b.create(nil))
	r, err := b.d.load(i.ID())
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.process()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := linux.SignalPID(p, 9); err != nil {
		t.Fatal(err)
	}
	select {
	case <-i.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("not reported")
	}
	if f := i.End(); f == nil || f.Kind != sandbox.KindInitKilled || f.Blame != sandbox.BlameTask {
		t.Fatalf("end %v", f)
	}
	alive(t, neighbour)
	if err := i.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestKilledAtEachStep kills a process that makes a sandbox at each failpoint; the next one finds and removes all.
func TestKilledAtEachStep(t *testing.T) {
	if os.Getenv("CONTAINER_CHILD") != "" {
		childMakesOne(t)
		return
	}
	for _, point := range []string{"recorded", "grouped", "layered", "spawned", "ready", "claim", "composed", "claimed", "killed", "unlayered"} {
		t.Run(point, func(t *testing.T) {
			b := newBed(t, func(c *Config) { c.Warm = 1 })
			b.d.closeParts()
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilledAtEachStep$")
			cmd.Env = append(os.Environ(), "CONTAINER_CHILD="+b.cfg.StateDir, "CONTAINER_EDGE="+string(b.cfg.Edge),
				"CONTAINER_INIT="+b.cfg.InitBinary, "DSEC_FAILPOINTS=container/"+point+"=kill")
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Run(); err == nil || !strings.Contains(err.Error(), "killed") {
				t.Fatalf("the child was not killed: %v\n%s", err, out.String())
			}
			b.open()
			removed, err := b.d.Sweep(t.Context(), func(sandbox.ID) bool { return false })
			if err != nil {
				t.Fatal(err)
			}
			if len(removed) == 0 {
				t.Fatal("nothing was found to remove")
			}
			if groups, err := b.d.tree.List(); err != nil || len(groups) != 0 {
				t.Fatalf("groups left: %v, %v", groups, err)
			}
			if layers, err := b.d.pool.List(); err != nil || len(layers) != 0 {
				t.Fatalf("writable layers left: %v, %v", layers, err)
			}
			// The node serves as before.
			i := b.create(nil)
			alive(t, connect(t, i))
		})
	}
}

func childMakesOne(t *testing.T) {
	store, digest, err := testkit.BaseLayer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(t.Context(), Config{StateDir: os.Getenv("CONTAINER_CHILD"), Edge: sandbox.EdgeID(os.Getenv("CONTAINER_EDGE")),
		InitBinary: os.Getenv("CONTAINER_INIT"), Layers: posix.NewNode(store), Warm: 1})
	if err != nil {
		t.Fatal(err)
	}
	i, err := d.Create(t.Context(), &sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: string(digest)}}, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.remains.close() // what Destroy has put off is a step as well
}

// TestStack composes a base, a workspace and a toolkit, with an /etc that is not like the base's.
func TestStack(t *testing.T) {
	b := newBed(t, nil)
	store, _, err := testkit.BaseLayer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for path, content := range map[string]string{"w/src/a.py": "print('workspace')\n", "t/opt/tool": "#!/bin/sh\necho toolkit\n", "t/etc/tool.conf": "x\n"} {
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "t/etc"), 0o711); err != nil {
		t.Fatal(err)
	}
	refs := append([]sandbox.LayerRef{}, b.base...)
	for _, top := range []string{"w", "t"} {
		d, err := testkit.Import(context.Background(), store, tree.Options{}, func(bl *tree.Builder) error {
			return bl.AddDir(t.Context(), filepath.Join(dir, top))
		})
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, sandbox.LayerRef{Digest: string(d), Kind: "workspace", Name: top})
	}
	i := b.create(func(s *sandbox.Spec) { s.Layers = refs; s.Hostname = "stacked" })
	c := connect(t, i)
	out := c.must("python3 /src/a.py; /opt/tool; stat -c %a /etc; cat /etc/hostname; hostname; getent hosts stacked; cat /etc/tool.conf; test -f /etc/passwd && echo passwd")
	if want := "workspace\ntoolkit\n711\nstacked\nstacked\n127.0.1.1       stacked\nx\npasswd\n"; out != want {
		t.Fatalf("stack says\n%s\nwant\n%s", out, want)
	}
	// Writes land in the writable layer alone: another sandbox of the same stack does not see them.
	c.must("rm /opt/tool; echo changed > /src/a.py")
	other := connect(t, b.create(func(s *sandbox.Spec) { s.Layers = refs }))
	if out := other.must("/opt/tool; cat /src/a.py"); out != "toolkit\nprint('workspace')\n" {
		t.Fatalf("the other sandbox says %q", out)
	}
	// A layer that does not exist is the platform's failure, and leaves nothing.
	_, err = b.d.Create(t.Context(), &sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: "b3:" + strings.Repeat("0", 64)}}, Limits: limits})
	var f *sandbox.Failure
	if !errors.As(err, &f) || f.Kind != sandbox.KindImageUnavailable {
		t.Fatalf("unknown layer: %v", err)
	}
}
