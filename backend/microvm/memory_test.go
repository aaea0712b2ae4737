package microvm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// asMemory makes a factory's machines have their layers as memory.
func asMemory(f sandboxtest.Factory) sandboxtest.Factory {
	inner := f.Backend
	f.Backend = func(t testing.TB, id sandbox.EdgeID, state string) sandbox.Backend {
		d := inner(t, id, state).(*microvm.Driver)
		d.UseLayersAs(microvm.LayersMemory)
		return d
	}
	return f
}

// TestMemory: machines whose layers are their memory read what machines with disks do, from pages that they share; they outlive their
// edge, are put away, and are copied.
func TestMemory(t *testing.T) {
	f, inet := netFactory(t, 0, "")
	n := sandboxtest.Start(t, asMemory(f), sandboxtest.Keeping(time.Nanosecond))
	b := n.Create(t, inet.spec(inet.One.String()+"/tcp"))
	wantBoot(t, b, "cold")
	if got := layersOf(b); got != "pmem" {
		t.Errorf("layers %q, want pmem", got)
	}
	state := filepath.Join(n.State, "driver")
	wantJailed(t, state, b.ID)
	// A program maps its file: what the machine reads are pages of the file's.
	const read = "cat /usr/bin/* > /dev/null 2>&1; sha256sum < /usr/bin/perl"
	sum := string(b.Shell(read).Stdout)
	b.WantShell("uname -n; "+inet.reach(inet.One)+"; "+inet.reach(inet.Other), b.ID+"\nreached\nnot reached\n")
	wantMapped(t, state, b.ID)
	b.WantShell("echo x > /root/x; (sleep 1000 & echo $! > /root/pid); cat /root/x", "x\n")
	b.Pause()
	b.AwaitSaved()
	if st, err := os.Stat(filepath.Join(state, "run/vm", b.ID, "saved/state")); err != nil || st.Size() > 2<<20 {
		t.Errorf("its state without memory: %v, %v", st, err)
	}
	n.Restart()
	b.WantShell("cat /root/x; kill -0 $(cat /root/pid) && echo alive; "+inet.reach(inet.One), "x\nalive\nreached\n")
	c := fork(b, 1)[0]
	wantBoot(t, c, "snapshot")
	c.WantShell("cat /root/x /etc/hostname; kill -0 $(cat /root/pid) && echo alive", "x\n"+c.ID+"\nalive\n")
	if got := string(c.Shell(read).Stdout); got != sum || !strings.HasSuffix(got, "  -\n") {
		t.Errorf("a copy reads %q, not %q", got, sum)
	}
	wantMapped(t, state, c.ID)
}

// TestConformanceMemory is TestConformance where layers are memory.
func TestConformanceMemory(t *testing.T) {
	slow(t)
	f, _ := netFactory(t, 0, "")
	sandboxtest.Run(t, asMemory(f))
}

// TestMemoryContents: all that a machine with disks reads of its layers one without reads too.
func TestMemoryContents(t *testing.T) {
	slow(t)
	const all = "cd / && find usr etc -xdev -type f ! -path 'etc/host*' ! -path etc/resolv.conf | sort | xargs cksum | cksum"
	f := factory(t)
	disks := sandboxtest.Start(t, f, nil).Create(t, nil)
	want := string(disks.Shell(all).Stdout)
	disks.Stop()
	b := sandboxtest.Start(t, asMemory(f), nil).Create(t, nil)
	if got := string(b.Shell(all).Stdout); got != want || want == "" {
		t.Errorf("it reads %q, want %q", got, want)
	}
}

func layersOf(b *sandboxtest.Box) string { return readyOf(b, "layers") }

// wantMapped looks that a machine's QEMU maps a file of the layers' store, read-only, shared, and in use.
func wantMapped(t *testing.T, state, id string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(state, "run/vm", id, "record.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		PID    int    `json:"pid"`
		Mapped []bool `json:"mapped"`
	}
	if err := json.Unmarshal(b, &r); err != nil || len(r.Mapped) == 0 {
		t.Fatalf("record %s: %v", b, err)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", r.PID))
	if err != nil {
		t.Fatal(err)
	}
	found, kib := false, 0
	for line := range strings.Lines(string(maps)) {
		words := strings.Fields(line)
		if len(words) >= 6 && strings.Contains(words[0], "-") && len(words[1]) == 4 {
			found = filepath.Base(words[5]) == "data"
			if found && words[1] != "r--s" {
				t.Errorf("it maps a layer %s", words[1])
			}
		}
		if found && words[0] == "Rss:" {
			v, _ := strconv.Atoi(words[1])
			kib += v
		}
	}
	if kib < 1024 {
		t.Errorf("it has %d KiB of its layers in use", kib)
	}
}
