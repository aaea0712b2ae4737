package microvm_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// awaitWarm waits until n machines are ready.
func awaitWarm(t *testing.T, b sandbox.Backend, n int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Minute); b.Warm() < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d machines are ready, want %d", b.Warm(), n)
		}
	}
}

// bootOf is what the events tell of how a machine came up.
func bootOf(b *sandboxtest.Box) string { return readyOf(b, "boot") }

func wantBoot(t *testing.T, b *sandboxtest.Box, want string) {
	t.Helper()
	if got := bootOf(b); got != want {
		t.Errorf("boot %q, want %q", got, want)
	}
}

// TestFresh: machines that came of one template have nothing in common that should be their own, whether they were
// ready or are clones.
func TestFresh(t *testing.T) {
	slow(t)
	n := sandboxtest.Start(t, warmFactory(t, 1, ""), nil)
	boxes := make([]*sandboxtest.Box, 2, 3)
	took := make([]time.Duration, 3)
	create := func(i int) *sandboxtest.Box {
		start := time.Now()
		b := n.Create(t, nil)
		took[i] = time.Since(start)
		return b
	}
	first := create(2)
	awaitWarm(t, n.Backend, 1)
	var wg sync.WaitGroup
	for i := range boxes { // one is ready
		wg.Go(func() { boxes[i] = create(i) })
	}
	wg.Wait()
	if got := bootOf(boxes[0]) + " " + bootOf(boxes[1]); got != "warm clone" && got != "clone warm" {
		t.Errorf("two at once with one ready: %q", got)
	}
	seen := map[string]string{}
	for i, b := range append(boxes, first) {
		b.WantShell("uname -n; cat /etc/hostname", b.ID+"\n"+b.ID+"\n")
		before := time.Now()
		out := strings.Fields(string(b.Shell("date +%s; cat /proc/sys/kernel/random/boot_id /proc/sys/kernel/random/uuid; od -An -N16 -tx8 /dev/urandom | tr -d ' '").Stdout))
		if len(out) != 4 {
			t.Fatalf("%q", out)
		}
		at, err := strconv.ParseInt(out[0], 10, 64)
		// What it was told was the time some time during its creation.
		if oldest := before.Add(-took[i]); err != nil || at < oldest.Unix()-1 || at > time.Now().Unix()+1 {
			t.Errorf("%s: its time of day is %s between %d and %d", b.ID, out[0], oldest.Unix(), time.Now().Unix())
		}
		for _, v := range out[1:] {
			if other := seen[v]; other != "" {
				t.Errorf("%s and %s have both %s", b.ID, other, v)
			}
			seen[v] = b.ID
		}
	}
}

// TestDamagedTemplate: what is not as it was made is made anew, and machines come of that.
func TestDamagedTemplate(t *testing.T) {
	slow(t)
	templates := t.TempDir()
	f := warmFactory(t, 1, templates)
	spec := &sandbox.Spec{Backend: sandbox.BackendMicroVM, Layers: []sandbox.LayerRef{{Digest: f.Layers[0].Digest}},
		Limits: sandbox.Limits{MemoryBytes: 64 << 20, CPUMillis: 1000, Pids: 100, DiskBytes: 16 << 20, ShmBytes: 8 << 20}}
	made := func() string { // a node's life; returns when its template was made
		node, state := sandbox.NewEdgeID(), t.TempDir()
		sweepAtEnd(t, f, node, state)
		d := f.Backend(t, node, state)
		i, err := d.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		awaitWarm(t, d, 1)
		if err := i.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		if i, err = d.Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if got := i.(sandbox.Booter).Boot(); got != "warm" {
			t.Errorf("boot %q", got)
		}
		if err := i.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		notes, _ := filepath.Glob(filepath.Join(templates, "*/template.json"))
		if len(notes) != 1 {
			t.Fatalf("templates %q", notes)
		}
		st, err := os.Stat(notes[0])
		if err != nil {
			t.Fatal(err)
		}
		return st.ModTime().String()
	}
	first := made()
	if second := made(); second != first {
		t.Errorf("a template that is whole was made again: %s, %s", first, second)
	}
	state, _ := filepath.Glob(filepath.Join(templates, "*/state"))
	b, err := os.ReadFile(state[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(state[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	if third := made(); third == first {
		t.Error("a damaged template was used")
	}
}
