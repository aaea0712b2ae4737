package container

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/policy/confine"
	"github.com/opendsec/dsec/sandbox"
)

// limits of the sandboxes in these tests.
var limits = sandbox.Limits{MemoryBytes: 256 << 20, CPUMillis: 2000, Pids: 200, DiskBytes: 64 << 20, ShmBytes: 16 << 20}

// initDir is where initBinary builds.
var initDir string

// initBinary builds dsec-init once.
var initBinary = sync.OnceValues(func() (bin string, err error) {
	if initDir, err = os.MkdirTemp("", "dsec-init-"); err != nil {
		return "", err
	}
	return testkit.Init(initDir)
})

func TestMain(m *testing.M) {
	code := m.Run()
	if initDir != "" {
		os.RemoveAll(initDir)
	}
	os.Exit(code)
}

// bed is a driver on a state of its own, and the base layer.
type bed struct {
	t    *testing.T
	d    *Driver
	cfg  Config
	base []sandbox.LayerRef
	made []sandbox.Instance
}

func newBed(t *testing.T, edit func(*Config)) *bed {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	store, digest, err := testkit.BaseLayer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bin, err := initBinary()
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, base: []sandbox.LayerRef{{Digest: string(digest), Kind: "base", Name: "debian"}}}
	b.cfg = Config{
		StateDir: t.TempDir(), Edge: sandbox.NewEdgeID(), InitBinary: bin, Layers: posix.NewNode(store),
		Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)), Warm: 2, PoolBytes: 512 << 20,
	}
	if edit != nil {
		edit(&b.cfg)
	}
	b.open()
	t.Cleanup(b.close)
	return b
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func (b *bed) open() {
	b.t.Helper()
	d, err := New(context.Background(), b.cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.d = d
}

// close ends the sandboxes and the driver, and checks that nothing is left on the machine.
func (b *bed) close() {
	if b.d == nil {
		return
	}
	ctx := context.Background()
	for _, i := range b.made {
		if err := i.Destroy(ctx); err != nil && i.(*instance).d == b.d {
			b.t.Errorf("destroy: %v", err)
		}
	}
	if err := b.d.Close(ctx); err != nil {
		b.t.Errorf("close: %v", err)
	}
	if _, err := os.Stat(b.d.tree.Dir()); err == nil {
		b.t.Error("control groups are left")
	}
	if _, err := os.Stat(b.d.shellsDir); err == nil {
		b.t.Errorf("%s is left", b.d.shellsDir)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		left, err := testkit.Leftovers(b.cfg.StateDir)
		if err != nil {
			b.t.Error(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			b.t.Errorf("left behind: %q", left)
			return
		}
	}
}

func (b *bed) create(edit func(*sandbox.Spec)) sandbox.Instance {
	b.t.Helper()
	spec := &sandbox.Spec{Backend: sandbox.BackendContainer, Layers: b.base, Limits: limits,
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}
	if edit != nil {
		edit(spec)
	}
	i, err := b.d.Create(b.t.Context(), spec)
	if err != nil {
		b.t.Fatal(err)
	}
	b.made = append(b.made, i)
	return i
}

// client runs commands in one instance and collects their output.
type client struct {
	t    *testing.T
	i    sandbox.Instance
	conn *aether.Conn
	next int
	oom  int64 // memory kills of the command that ended last

	mu   sync.Mutex
	out  map[string]*bytes.Buffer
	exit map[string]chan wire.Exit
	gone chan struct{}
}

func connect(t *testing.T, i sandbox.Instance) *client {
	t.Helper()
	conn, err := i.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, i: i, conn: conn, out: map[string]*bytes.Buffer{}, exit: map[string]chan wire.Exit{}, gone: make(chan struct{})}
	conn.Serve(c)
	t.Cleanup(func() { conn.Close(); <-c.gone })
	return c
}

func (c *client) Output(command string, offset int64, _ wire.Stream, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.out[command]
	if b == nil || int64(b.Len()) != offset {
		c.t.Errorf("output of %s at %d", command, offset)
		return
	}
	b.Write(data)
	c.conn.Ack(command, offset+int64(len(data)))
}

func (c *client) Exited(command string, e wire.Exit) {
	c.mu.Lock()
	ch := c.exit[command]
	c.mu.Unlock()
	if ch != nil {
		ch <- e
	}
	c.conn.Release(command)
}

func (c *client) SessionEnded(string, wire.Exit) {}
func (c *client) Closed(error)                   { close(c.gone) }

// run runs a shell command and returns its output and end.
func (c *client) run(shell string) (string, wire.Exit) {
	c.t.Helper()
	return c.start(&wire.Start{Shell: shell})
}

func (c *client) start(s *wire.Start) (string, wire.Exit) {
	c.t.Helper()
	c.next++
	s.ID = "c" + string(rune('a'+c.next%26)) + time.Now().Format("150405.000000000")[7:]
	if s.TimeoutMillis == 0 {
		s.TimeoutMillis = 60_000
	}
	ch := make(chan wire.Exit, 1)
	c.mu.Lock()
	c.out[s.ID], c.exit[s.ID] = &bytes.Buffer{}, ch
	c.mu.Unlock()
	g, err := c.i.Group(c.t.Context(), s.ID)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.conn.Start(c.t.Context(), s, g.Files()); err != nil {
		_ = g.Remove()
		c.t.Fatalf("start %q: %v", s.Shell, err)
	}
	g.CloseFiles()
	select {
	case e := <-ch:
		if c.oom, err = g.OOMKills(); err != nil {
			c.t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.out[s.ID].String(), e
	case <-c.gone:
		c.t.Fatalf("channel closed during %q", s.Shell)
	case <-time.After(time.Duration(s.TimeoutMillis)*time.Millisecond + 30*time.Second):
		c.t.Fatalf("no end of %q", s.Shell)
	}
	panic("unreachable")
}

// must runs a shell command that has to succeed.
func (c *client) must(shell string) string {
	c.t.Helper()
	out, e := c.run(shell)
	if e.Code != 0 || e.Signal != 0 {
		c.t.Fatalf("%q: %+v\n%s", shell, e, out)
	}
	return out
}

// TestConfined: every sandbox, not the first alone, runs under the filter and sees its own groups only.
func TestConfined(t *testing.T) {
	b := newBed(t, nil)
	for range 3 {
		c := connect(t, b.create(nil))
		out := c.must("grep -E '^(Seccomp|CapBnd)' /proc/self/status; sed 's/^[^:]*:[^:]*:/group /' /proc/self/cgroup | sort -u; cat /proc/1/cgroup; mount | grep cgroup")
		if !strings.Contains(out, "Seccomp:\t2\n") || !strings.Contains(out, "CapBnd:\t00000000a80425fb\n") {
			t.Errorf("confinement: %s", out)
		}
		if !strings.Contains(out, "group /c") || strings.Contains(out, "dsec") || strings.Contains(out, string(b.cfg.Edge)) || !strings.Contains(out, "/sys/fs/cgroup type cgroup2 (ro,") {
			t.Errorf("control groups as seen inside: %s", out)
		}
		if confine.HaveAppArmor() == nil {
			if got, want := c.must("cat /proc/self/attr/apparmor/current"), confine.DefaultProfile().Name()+" (enforce)\n"; got != want {
				t.Errorf("AppArmor profile %q, want %q", got, want)
			}
		}
		if b.d.tree.Mode() == "v2" {
			if got := c.must("cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max"); got != "268435456\n200\n" {
				t.Errorf("limits as seen inside: %q", got)
			}
		}
	}
}

func TestCreateAndRun(t *testing.T) {
	b := newBed(t, nil)
	i := b.create(nil)
	c := connect(t, i)
	if out := c.must("echo hello; id -u; hostname; cat /etc/hostname; pwd"); !strings.HasPrefix(out, "hello\n0\n"+string(i.ID())+"\n"+string(i.ID())+"\n") {
		t.Fatalf("output %q", out)
	}
	out := c.must("python3 -c 'import os; print(os.cpu_count())' && touch /root/x && ls -ln /root/x /etc/hosts && getent hosts localhost && stat -fc %T / && mount && ls -l /dev && cat /proc/self/status | grep -E 'Cap|Secc|NoNew'")
	t.Log(out)
	if err := i.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-i.Done():
	default:
		t.Fatal("destroyed but not done")
	}
	if f := i.End(); f != nil {
		t.Fatalf("end %v", f)
	}
}
