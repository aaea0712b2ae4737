package fncall

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opendsec/dsec/guest/cell"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/internal/testkit/patience"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/store/posix"
)

// TestMain removes what the tests share.
func TestMain(m *testing.M) {
	code := m.Run()
	if shared.dir != "" {
		os.RemoveAll(shared.dir)
	}
	os.Exit(code)
}

var shared struct {
	once sync.Once
	dir  string
	init string
	env  *Environment
	err  error

	compilers bool
}

// environment is a Debian with compilers, and dsec-init as built from this tree.
func environment(t testing.TB) (*Environment, string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if testing.Short() {
		t.Skip("makes a Debian image")
	}
	shared.once.Do(func() {
		ctx := context.Background()
		store, digest, err := base(ctx)
		if shared.err = err; err != nil {
			return
		}
		l, err := posix.NewNode(store).Local(ctx, digest)
		if shared.err = err; err != nil {
			return
		}
		shared.env = &Environment{Digests: []string{string(digest)}, Layers: []cell.Layer{{Meta: l.MetaPath, Data: l.DataPath}}}
		shared.dir, shared.err = os.MkdirTemp("/var/tmp", "fncall-init-")
		if shared.err == nil {
			shared.init, shared.err = testkit.Init(shared.dir)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.env, shared.init
}

// base is the layer of a Debian with compilers. Where the tests run on a kernel of their own, that is too much to carry
// along: there it is the one of all other tests.
func base(ctx context.Context) (*posix.Store, layer.Digest, error) {
	if os.Getenv("DSEC_TEST_INIT") != "" {
		return testkit.BaseLayer(ctx)
	}
	shared.compilers = true
	tar, err := testkit.DebianTree(ctx, testkit.CallPackages...)
	if err != nil {
		return nil, "", err
	}
	return testkit.TarLayer(ctx, tar)
}

// needsCompiler skips a test where the base has none.
func needsCompiler(t testing.TB) {
	t.Helper()
	if environment(t); !shared.compilers {
		t.Skip("the base has no compiler")
	}
}

// newService starts a service of the test's own; with it, nothing may be left.
func newService(t testing.TB, change ...func(*Config)) *Service {
	t.Helper()
	env, init := environment(t)
	dir, err := os.MkdirTemp("/var/tmp", "fncall-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bases, err := ParseBases("debian")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{StateDir: dir, Name: fmt.Sprintf("fncalltest-%d-%s", os.Getpid(), strings.ToLower(t.Name())), InitBinary: init, Bases: bases,
		Resolve: func(context.Context, string) (*Environment, error) { return env, nil }}
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		for _, d := range s.groups.dirs() {
			if _, err := os.Stat(d); err == nil {
				t.Errorf("control group %s is left", d)
			}
		}
	})
	return s
}

// call runs a call of runtime with code and wants no error.
func call(t testing.TB, s *Service, r *Request) *Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), slowness*2*time.Minute)
	defer cancel()
	out, err := s.Call(ctx, "key", r)
	if err != nil {
		t.Fatalf("call: %v", err)
	}
	return out
}

func script(runtime, code string) *Request {
	r := &Request{Program: Program{Runtime: runtime, Code: code}}
	if slowness > 1 {
		r.Limits = Limits{CPU: min(slowness*DefaultLimits.CPU, maxLimits.CPU), Wall: min(slowness*DefaultLimits.Wall, maxLimits.Wall)}
	}
	return r
}

// slowness is how much slower than a real one the machine is.
var slowness = time.Duration(patience.Factor())
