package microvm_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

func factory(t *testing.T) sandboxtest.Factory {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	kernels := filepath.Join(testkit.Cache(), "kernel")
	if err := os.MkdirAll(kernels, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := debkernel.Fetch(t.Context(), &debkernel.Options{Cache: kernels}); err != nil {
		t.Skipf("no kernel: %v", err)
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
		KillInit: func(t testing.TB, b sandbox.Backend, id sandbox.ID) {
			p, err := b.(*microvm.Driver).Process(id)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if err := linux.SignalPID(p, 9); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// TestConformance runs the suite that every backend passes. Machines take seconds each to boot where they are emulated.
func TestConformance(t *testing.T) {
	if os.Getenv("DSEC_TEST_SLOW") == "" {
		t.Skip("boots many machines: DSEC_TEST_SLOW=1")
	}
	sandboxtest.Run(t, factory(t))
}

// TestSmoke boots one machine.
func TestSmoke(t *testing.T) {
	n := sandboxtest.Start(t, factory(t), nil)
	b := n.Create(t, nil)
	b.WantShell("echo hello; cat /proc/1/comm >/dev/null; exec 2>&1; uname -r | grep -o cloud", "hello\ncloud\n")
	n.Restart()
	b.WantShell("cat /etc/hostname", b.ID+"\n")
}
