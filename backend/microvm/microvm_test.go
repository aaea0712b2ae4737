package microvm_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// factory makes drivers whose machines all boot.
func factory(t *testing.T) sandboxtest.Factory { return warmFactory(t, 0, "") }

// warmFactory makes drivers that keep machines ready; templates is where their templates lie, "" = in their state.
func warmFactory(t *testing.T, warm int, templates string) sandboxtest.Factory {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	kernels, err := testkit.MachineKernel(t.Context())
	if err != nil {
		t.Fatalf("no kernel: %v", err)
	}
	store, digest, err := testkit.BaseLayer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bin, err := testkit.Init(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return sandboxtest.Factory{
		Backend: func(t testing.TB, id sandbox.EdgeID, state string) sandbox.Backend {
			d, err := microvm.New(context.Background(), microvm.Config{
				StateDir: state, Edge: id, InitBinary: bin, KernelDir: kernels, Layers: posix.NewNode(store),
				Warm: warm, Templates: templates, BootTimeout: 5 * time.Minute,
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Ready(); errors.Is(err, sandbox.ErrUnsupported) {
				_ = d.Close(context.Background())
				t.Skip(err)
			}
			return d
		},
		Layers:   []*dsecv1.ResolvedLayer{{Digest: string(digest), Kind: "base", Name: "debian", Version: "v1"}},
		ImageEnv: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Limits:   &dsecv1.Limits{MemoryBytes: 256 << 20, CpuMillis: 2000, Pids: 400, DiskBytes: 64 << 20, ShmBytes: 16 << 20},
		// Many at once, emulated beside other tests.
		Config: func(c *edge.Config) { c.CreateTimeout = 10 * time.Minute },
		KillInit: func(t testing.TB, b sandbox.Backend, id sandbox.ID) {
			if err := b.(*microvm.Driver).EndInit(id); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func slow(t *testing.T) {
	if os.Getenv("DSEC_TEST_SLOW") == "" {
		t.Skip("boots more machines: DSEC_TEST_SLOW=1")
	}
}

// TestConformance runs the suite that every backend passes, over machines that come up in all the ways there are.
func TestConformance(t *testing.T) {
	slow(t)
	f, _ := netFactory(t, 2, "")
	sandboxtest.Run(t, f)
}

// TestSmoke boots one machine: it outlives its edge, and its QEMU's end is told. The next is claimed, from those that are
// ready since; it has a network, and keeps that while it is put away.
func TestSmoke(t *testing.T) {
	f, inet := netFactory(t, 1, "")
	n := sandboxtest.Start(t, f, sandboxtest.Keeping(time.Nanosecond))
	b := n.Create(t, nil)
	kernel, err := testkit.MachineKernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release, err := debkernel.Find(&debkernel.Options{Cache: kernel})
	if err != nil {
		t.Fatal(err)
	}
	b.WantShell("uname -r; cat /etc/hostname; ls /sys/class/net", release.Version+"\n"+b.ID+"\nlo\n")
	wantBoot(t, b, "cold")
	awaitWarm(t, n.Backend, 1)
	w := n.Create(t, inet.spec(inet.One.String()+"/tcp"))
	w.WantShell("uname -n; cat /etc/hostname; stat -f -c %T /; "+inet.reach(inet.One)+"; "+inet.reach(inet.Other),
		w.ID+"\n"+w.ID+"\noverlayfs\nreached\nnot reached\n")
	wantBoot(t, w, "warm")
	for _, box := range []*sandboxtest.Box{b, w} {
		if got := readyOf(box, "kernel"); got != release.Version {
			t.Errorf("its ready event names kernel %q", got)
		}
	}
	wantJailed(t, filepath.Join(n.State, "driver"), b.ID)
	wantJailed(t, filepath.Join(n.State, "driver"), w.ID)
	w.Pause()
	w.AwaitSaved()
	n.Restart()
	b.WantShell("echo still here", "still here\n")
	w.WantShell(inet.reach(inet.One)+"; "+inet.reach(inet.Other), "reached\nnot reached\n")
	w.WantShell("echo still here", "still here\n")
	st := b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Shell: "echo on; sleep 600"}})
	st.Until("on\n")
	p, err := n.Backend.(*microvm.Driver).Process(sandbox.ID(b.ID))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := linux.SignalPID(p, 9); err != nil {
		t.Fatal(err)
	}
	if end := b.AwaitEnd().End; end.Kind != string(sandbox.KindVMMCrashed) || end.Blame != dsecv1.Blame_BLAME_INFRA {
		t.Errorf("after its QEMU was killed: %v", end)
	}
}

// TestPanic: a kernel that panics is told from a QEMU that crashed, with what it said.
func TestPanic(t *testing.T) {
	slow(t)
	n := sandboxtest.Start(t, factory(t), nil)
	b := n.Create(t, nil)
	if err := n.Backend.(*microvm.Driver).Panic(sandbox.ID(b.ID)); err != nil {
		t.Fatal(err)
	}
	end := b.AwaitEnd().End
	if end.Kind != string(sandbox.KindGuestPanicked) || end.Blame != dsecv1.Blame_BLAME_TASK || !strings.Contains(end.Evidence, "sysrq") {
		t.Errorf("after a panic: %v", end)
	}
}

// sweepAtEnd removes whatever a test that fails leaves running.
func sweepAtEnd(t *testing.T, f sandboxtest.Factory, node sandbox.EdgeID, state string) {
	t.Cleanup(func() {
		d := f.Backend(t, node, state)
		left, err := d.Sweep(context.Background(), func(sandbox.ID) bool { return false })
		if len(left) > 0 || err != nil {
			t.Errorf("left running: %q, %v", left, err)
		}
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// TestSuccessor: another driver over the same state, as after kill -9 of the edge, finds the machine and what is left
// of others, those included that were ready and nobody's.
func TestSuccessor(t *testing.T) {
	slow(t)
	f := warmFactory(t, 1, t.TempDir())
	state, node := t.TempDir(), sandbox.NewEdgeID()
	sweepAtEnd(t, f, node, state)
	first := f.Backend(t, node, state)
	spec := &sandbox.Spec{Backend: sandbox.BackendMicroVM, Layers: []sandbox.LayerRef{{Digest: f.Layers[0].Digest}},
		Limits: sandbox.Limits{MemoryBytes: 128 << 20, CPUMillis: 1000, Pids: 100, DiskBytes: 16 << 20, ShmBytes: 8 << 20}}
	var made [2]sandbox.Instance
	for i := range made {
		var err error
		if made[i], err = first.Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	keep, drop := made[0].ID(), made[1].ID()
	awaitWarm(t, first, 1)
	first.(*microvm.Driver).Abandon()
	second := f.Backend(t, node, state)
	inst, err := second.Recover(t.Context(), keep, made[0].Handle())
	if err != nil {
		t.Fatal(err)
	}
	swept, err := second.Sweep(t.Context(), func(id sandbox.ID) bool { return id == keep })
	if err != nil || len(swept) != 2 || !slices.Contains(swept, string(drop)) {
		t.Errorf("swept %q, %v", swept, err)
	}
	c, err := inst.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := inst.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(state, "run/vm/s*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if _, err := second.Recover(t.Context(), keep, made[0].Handle()); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("recover what is gone: %v", err)
	}
}

// TestNoBoot: a kernel that does not come up is a failure of the platform, with what the console said; nothing is left.
func TestNoBoot(t *testing.T) {
	slow(t)
	factory(t) // a kernel, or a reason to skip
	store, digest, err := testkit.BaseLayer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kernels, err := testkit.MachineKernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	d, err := microvm.New(t.Context(), microvm.Config{StateDir: state, Edge: sandbox.NewEdgeID(), InitBinary: "/bin/true",
		KernelDir: kernels, Layers: posix.NewNode(store)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Create(t.Context(), &sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: string(digest)}},
		Limits: sandbox.Limits{MemoryBytes: 64 << 20, CPUMillis: 1000, Pids: 100, DiskBytes: 16 << 20}})
	var fail *sandbox.Failure
	if !errors.As(err, &fail) || fail.Kind != sandbox.KindBootFailed || !strings.Contains(fail.Evidence, "Kernel panic") {
		t.Errorf("a kernel without a first program: %v\n%s", err, fail.Evidence)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(state, "run/vm/s*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestLacks: what a node lacks is said with what to run, and what machines cannot do yet is refused.
func TestLacks(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		cfg  microvm.Config
		spec sandbox.Spec
		want string
	}{
		{microvm.Config{QEMU: "no-such-qemu"}, sandbox.Spec{}, "install QEMU"},
		{microvm.Config{QEMU: "true"}, sandbox.Spec{}, "dsec kernel install"},
	} {
		c.cfg.StateDir, c.cfg.Edge, c.cfg.KernelDir = dir, sandbox.NewEdgeID(), dir
		d, err := microvm.New(t.Context(), c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		c.spec.Layers = []sandbox.LayerRef{{Digest: "x"}}
		if _, err := d.Create(t.Context(), &c.spec); !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
