package container

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/internal/testkit/patience"
	"github.com/opendsec/dsec/sandbox"
)

// alive checks that a sandbox answers: what a neighbour did must not matter.
func alive(t *testing.T, c *client) {
	t.Helper()
	if out := c.must("echo alive"); out != "alive\n" {
		t.Fatalf("neighbour says %q", out)
	}
}

func TestMemoryLimit(t *testing.T) {
	b := newBed(t, nil)
	neighbour := connect(t, b.create(nil))
	i := b.create(nil)
	c := connect(t, i)
	_, e := c.start(&wire.Start{Argv: []string{"python3", "-c", "x = bytearray(1 << 30); print(len(x))"}})
	if e.Signal != int32(syscall.SIGKILL) {
		t.Fatalf("allocating beyond the limit: %+v", e)
	}
	if c.oom != 1 {
		t.Fatalf("memory kills: %d, want 1", c.oom)
	}
	st, err := i.Stats(t.Context())
	if err != nil || st.OOMKills != 1 || st.MemoryLimitBytes != limits.MemoryBytes || st.MemoryPeakBytes > st.MemoryLimitBytes || st.MemoryPeakBytes < limits.MemoryBytes/2 {
		t.Fatalf("statistics: %+v, %v", st, err)
	}
	// tmpfs counts too.
	out, e := c.run("dd if=/dev/zero of=/dev/shm/x bs=1M count=400 2>&1")
	if e.Code == 0 && e.Signal == 0 {
		t.Fatalf("/dev/shm took 400 MiB: %s", out)
	}
	alive(t, c)
	alive(t, neighbour)
}

func TestForkBomb(t *testing.T) {
	b := newBed(t, nil)
	neighbour := connect(t, b.create(nil))
	i := b.create(nil)
	c := connect(t, i)
	_, e := c.start(&wire.Start{Shell: "bomb() { bomb | bomb & }; bomb; sleep 100", TimeoutMillis: 3000})
	if !e.TimedOut {
		t.Fatalf("fork bomb: %+v", e)
	}
	st, err := i.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.PidsLimit != limits.Pids {
		t.Fatalf("pids limit %d", st.PidsLimit)
	}
	alive(t, neighbour)
	alive(t, c) // the timeout took the whole tree
}

func TestDiskLimit(t *testing.T) {
	b := newBed(t, nil)
	neighbour := connect(t, b.create(nil))
	i := b.create(nil)
	c := connect(t, i)
	full := func() bool {
		t.Helper()
		own, shared, err := i.(*instance).DiskFull(t.Context())
		if err != nil || shared {
			t.Fatal(shared, err)
		}
		return own
	}
	if full() {
		t.Fatal("full from the start")
	}
	out, e := c.run("dd if=/dev/zero of=/big bs=1M count=200 conv=fsync 2>&1; dd if=/dev/zero of=/tmp/big bs=1M count=100 2>&1; sync; echo done")
	if e.Code != 0 || !strings.Contains(out, "quota exceeded") && !strings.Contains(out, "No space left") {
		t.Fatalf("filling the disk: %+v\n%s", e, out)
	}
	if !full() {
		t.Fatal("the layer does not count as full")
	}
	neighbour.must("dd if=/dev/zero of=/mine bs=1M count=10 2>&1 && rm /mine")
	c.must("rm -f /big /tmp/big && echo again > /small")
}

func TestManyFiles(t *testing.T) {
	b := newBed(t, nil)
	neighbour := connect(t, b.create(nil))
	c := connect(t, b.create(func(s *sandbox.Spec) { s.Limits.DiskBytes = 16 << 20 / int64(min(4, patience.Factor())) }))
	out, e := c.start(&wire.Start{TimeoutMillis: 600_000, Argv: []string{"python3", "-c", `
import os
os.mkdir("/many")
n = 0
try:
    while n < 1000000:
        open(f"/many/{n}", "w").write("x")
        n += 1
except OSError as e:
    print("stopped", n, e.strerror)
else:
    print("all", n)
`}})
	// Names take space too: the disk's limit ends it long before the million.
	if e.Code != 0 || !strings.HasPrefix(out, "stopped") || !strings.Contains(out, "quota exceeded") {
		t.Fatalf("a million files: %+v %s", e, out)
	}
	alive(t, neighbour)
}

func TestCPULimit(t *testing.T) {
	b := newBed(t, nil)
	i := b.create(func(s *sandbox.Spec) { s.Limits.CPUMillis = 100 })
	c := connect(t, i)
	before, err := i.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.start(&wire.Start{Shell: "while :; do :; done", TimeoutMillis: 2000})
	after, err := i.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if used := after.CPUUsage - before.CPUUsage; used.Seconds() > 0.6 {
		t.Fatalf("used %v of CPU in about 2 s at a tenth of a core", used)
	}
}

func TestPause(t *testing.T) {
	b := newBed(t, nil)
	i := b.create(nil)
	c := connect(t, i)
	c.must("(while :; do echo x >> /count; done) >/dev/null 2>&1 & sleep 0.2")
	if err := i.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	one, err := c.conn.Stat(t.Context(), "/count", "", false, false)
	if err != nil {
		t.Fatal(err)
	}
	// dsec-init itself is not frozen: files can be read, and nothing grows meanwhile.
	two, err := c.conn.Stat(t.Context(), "/count", "", false, false)
	if err != nil || two.Size != one.Size || one.Size == 0 {
		t.Fatalf("size %d, then %d, %v", one.Size, two.Size, err)
	}
	if err := i.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	alive(t, c)
}

// TestIOLimit: what goes straight to the disk goes no faster than the limit allows. The bound is from below: a slow
// machine takes longer, none less.
func TestIOLimit(t *testing.T) {
	b := newBed(t, nil)
	const rate, size = 1 << 20, 4 << 20
	for name, script := range map[string]string{
		"write": "dd if=/dev/zero of=/out bs=256k count=16 oflag=direct status=none",
		"read":  "dd if=/in of=/dev/null bs=256k iflag=direct status=none",
	} {
		t.Run(name, func(t *testing.T) {
			free, limited := connect(t, b.create(nil)), connect(t, b.create(func(s *sandbox.Spec) {
				s.Limits.IOReadBPS, s.Limits.IOWriteBPS = rate, 2*rate
				if name == "write" {
					s.Limits.IOReadBPS, s.Limits.IOWriteBPS = 2*rate, rate
				}
			}))
			for _, c := range []*client{free, limited} { // incompressible, and on the disk
				c.must("head -c 4194304 /dev/urandom > /in && sync /in")
			}
			free.must(script)
			start := time.Now()
			limited.must(script)
			// A part may pass on what was saved up before.
			if took, least := time.Since(start), time.Duration(size/rate)*time.Second/4; took < least {
				t.Errorf("%d bytes at %d a second in %v, want at least %v", size, rate, took, least)
			}
		})
	}
}

// TestExpectedLimits: shells are given the limits of the sandbox before them, and take others all the same.
func TestExpectedLimits(t *testing.T) {
	b := newBed(t, nil)
	check := func(l sandbox.Limits) {
		t.Helper()
		i := b.create(func(s *sandbox.Spec) { s.Limits = l })
		st, err := i.Stats(t.Context())
		if err != nil || st.MemoryLimitBytes != l.MemoryBytes || st.PidsLimit != l.Pids || st.DiskLimitBytes != l.DiskBytes {
			t.Errorf("limits %+v, %v, want %+v", st, err, l)
		}
	}
	other := limits
	other.MemoryBytes, other.Pids, other.DiskBytes = limits.MemoryBytes/2, limits.Pids/2, limits.DiskBytes/2
	for range 3 * b.cfg.Warm { // until shells that were made after the first are in use
		check(limits)
	}
	check(other)
	check(limits)
	for range 3 * b.cfg.Warm {
		check(other)
	}
	if got := b.d.limits.Load(); got == nil || *got != other {
		t.Errorf("the next shells expect %+v, want %+v", got, other)
	}
}
