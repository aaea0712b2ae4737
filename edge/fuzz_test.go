package edge

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// FuzzSpecs: whatever is asked for, the answer is a plan within the limits or a refusal of a known kind that
// shows no secret.
func FuzzSpecs(f *testing.F) {
	cfg := Config{ID: "fuzz", StateDir: f.TempDir()}
	if err := cfg.defaults(); err != nil {
		f.Fatal(err)
	}
	e := &Edge{cfg: cfg, backends: map[sandbox.BackendName]sandbox.Backend{sandbox.BackendContainer: nobody{}}}
	seed := &dsecv1.CreateResolvedRequest{
		Create: &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{
			Limits: &dsecv1.Limits{MemoryBytes: 1 << 30, ShmBytes: 1 << 20}, TtlSeconds: proto.Float64(1), Env: map[string]string{"A": "b"},
			Labels: map[string]string{"k": "v"}, Hostname: "host-1", User: "root:root", Workdir: "/x",
		}},
		Layers: []*dsecv1.ResolvedLayer{{Digest: "b3:00", Kind: "base"}}, ImageEnv: []string{"PATH=/bin", "odd"},
	}
	b, _ := proto.Marshal(seed)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		req := &dsecv1.CreateResolvedRequest{}
		if proto.Unmarshal(b, req) != nil {
			return
		}
		const secret = "a-value-that-nobody-may-see"
		if s := req.GetCreate().GetSpec(); s != nil && len(s.Secrets) > 0 {
			for k := range s.Secrets {
				s.Secrets[k] = secret
			}
		}
		p, err := e.check(req)
		if err != nil {
			if !errors.Is(err, sandbox.ErrInvalid) && !errors.Is(err, sandbox.ErrUnsupported) || strings.Contains(err.Error(), secret) {
				t.Errorf("refused with %v", err)
			}
			return
		}
		l, most := p.machine.Limits, cfg.MaxLimits
		if l.MemoryBytes < 1 || l.MemoryBytes > most.MemoryBytes || l.Pids < 1 || l.Pids > most.Pids || l.CPUMillis < 1 ||
			l.CPUMillis > most.CPUMillis || l.ShmBytes < 0 || l.ShmBytes > l.MemoryBytes/2 || p.ttl < 0 || p.idle < 0 || p.timeout <= 0 {
			t.Errorf("accepted %+v", p.machine.Limits)
		}
		if len(p.public.Secrets) != 0 || strings.Contains(p.public.String(), secret) {
			t.Error("the public spec holds secrets")
		}
	})
}

// nobody is a backend that is only there.
type nobody struct{ sandbox.Backend }

// FuzzCommands: what is accepted fits the kernel's bounds, and its record is small and holds no secret.
func FuzzCommands(f *testing.F) {
	b, _ := proto.Marshal(&dsecv1.CommandSpec{Argv: []string{"echo", "x"}, Env: map[string]string{"A": "b"}, Secrets: map[string]string{"S": "t"}, TimeoutSeconds: proto.Float64(1)})
	f.Add(b, int64(100))
	f.Fuzz(func(t *testing.T, b []byte, env int64) {
		s := &dsecv1.CommandSpec{}
		if proto.Unmarshal(b, s) != nil || env < 0 || env > maxEnvTotal {
			return
		}
		if err := checkCommand(s, env); err != nil {
			if !errors.Is(err, sandbox.ErrInvalid) {
				t.Errorf("refused with %v", err)
			}
			return
		}
		r := recorded(s)
		if r.Secrets != nil || r.Stdin != nil || proto.Size(r) > 2*maxRecorded {
			t.Errorf("a record of %d bytes: %v", proto.Size(r), r)
		}
		w := wireStart("c1", s)
		if len(w.Argv) == 0 && w.Shell == "" || w.TimeoutMillis < 0 {
			t.Errorf("start %+v", w)
		}
	})
}
