package container_test

import (
	"context"
	"os"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/container"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/policy/network/node/nodetest"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// TestConformance runs the suite that every backend passes.
func TestConformance(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	store, digest, err := testkit.BaseLayer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bin, err := testkit.Init(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	net := &nodetest.Internet{}
	sandboxtest.Run(t, sandboxtest.Factory{
		Backend: func(t testing.TB, id sandbox.EdgeID, state string) sandbox.Backend {
			d, err := container.New(context.Background(), container.Config{
				StateDir: state, Edge: id, InitBinary: bin, Layers: posix.NewNode(store), Warm: 4, PoolBytes: 1 << 30,
				Network: net.Open(t, state),
			})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Internet: func() *sandboxtest.Internet {
			return &sandboxtest.Internet{One: net.One, Other: net.Other, Known: net.Node.Known}
		},
		Config: func(cfg *edge.Config) {
			if net.Node != nil {
				c := net.Node.Compiler()
				cfg.Network = &c
			}
		},
		Layers:   []*dsecv1.ResolvedLayer{{Digest: string(digest), Kind: "base", Name: "debian", Version: "v1"}},
		ImageEnv: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Limits:   &dsecv1.Limits{MemoryBytes: 256 << 20, CpuMillis: 2000, Pids: 400, DiskBytes: 64 << 20, ShmBytes: 16 << 20},
		KillInit: func(t testing.TB, b sandbox.Backend, id sandbox.ID) {
			p, err := b.(*container.Driver).Process(id)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if err := linux.SignalPID(p, 9); err != nil {
				t.Fatal(err)
			}
		},
	})
}
