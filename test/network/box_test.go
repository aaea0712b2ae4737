package network

import (
	"context"
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/policy/network/datapath"
)

// box is a sandbox.
type box struct {
	*world
	t  *testing.T
	id string
}

// box makes a sandbox that may reach what the rules say. It is stopped with its test.
func (w *world) box(t *testing.T, allow ...string) *box {
	t.Helper()
	return w.boxes(t, 1, base, allow...)[0]
}

func (w *world) boxes(t *testing.T, n int, base string, allow ...string) []*box {
	t.Helper()
	return w.stacked(t, n, base, []string{"probe"}, allow)
}

// boxWith makes a sandbox with more toolkits.
func (w *world) boxWith(t *testing.T, toolkits []string, allow ...string) *box {
	t.Helper()
	return w.stacked(t, 1, base, toolkits, allow)[0]
}

func (w *world) stacked(t *testing.T, n int, base string, toolkits, allow []string) []*box {
	t.Helper()
	backend := dsecv1.Backend_BACKEND_UNSPECIFIED
	if w.machines {
		backend = dsecv1.Backend_BACKEND_MICROVM
	}
	made, err := w.Client.Create(t.Context(), &dsecv1.CreateSandboxRequest{Count: int32(n), Spec: &dsecv1.SandboxSpec{
		Backend:      backend,
		Environment:  &dsecv1.Environment{Base: base, Toolkits: toolkits},
		Limits:       &dsecv1.Limits{MemoryBytes: 512 << 20, CpuMillis: 2000, Pids: 256, DiskBytes: 128 << 20, ShmBytes: 16 << 20},
		NetworkRules: rules(allow),
	}})
	if err != nil {
		t.Fatalf("create a sandbox that may reach %q: %v", allow, err)
	}
	var out []*box
	for _, s := range made {
		out = append(out, &box{w, t, s.GetId()})
	}
	return out
}

// stop ends the sandbox before its node.
func (b *box) stop() {
	b.t.Helper()
	if _, err := b.Client.Sandboxes.StopSandbox(b.t.Context(), &dsecv1.StopSandboxRequest{SandboxId: b.id}); err != nil {
		b.t.Errorf("stop: %v", err)
	}
}

// sh runs a shell's line to its end and returns what it printed.
func (b *box) sh(line string) string {
	b.t.Helper()
	timeout := 60.0
	if b.machines { // emulated, they are slow
		timeout = 600
	}
	r, err := b.Client.Commands.Exec(b.t.Context(), &dsecv1.ExecRequest{SandboxId: b.id, OperationId: client.NewOperationID(),
		Command: &dsecv1.CommandSpec{Shell: line, TimeoutSeconds: &timeout}})
	if err != nil {
		b.t.Fatalf("%s: %v", line, err)
	}
	if res := r.GetCommand().GetResult(); res.GetExitCode() != 0 {
		b.t.Fatalf("%s: %v\n%s%s", line, res, r.GetStdout(), r.GetStderr())
	}
	return strings.TrimSpace(string(r.GetStdout()))
}

// reach runs the probe and wants it to say one of several things.
func (b *box) reach(args string, want ...string) {
	b.t.Helper()
	got := b.sh("reach " + args)
	for _, w := range want {
		if got == w || w == "denied" && b.denied(got) {
			return
		}
	}
	b.t.Errorf("reach %s: %q, want %q", args, got, want)
}

// denied tells whether a program was told that it may not: by nftables, and in machines, that is a refusal from the link.
func (b *box) denied(word string) bool {
	return word == "denied" || (b.by == datapath.Nftables || b.machines) && (word == "refused" || word == "unreachable")
}

// set replaces the rules and returns the generation in force.
func (b *box) set(allow ...string) int64 {
	b.t.Helper()
	r, err := b.Client.Sandboxes.SetNetwork(b.t.Context(), &dsecv1.SetNetworkRequest{SandboxId: b.id, Rules: rules(allow)})
	if err != nil {
		b.t.Fatalf("set %q: %v", allow, err)
	}
	if n := r.GetNetwork(); n.GetGenerationApplied() != n.GetGenerationAsked() || len(n.GetRules()) != len(allow) {
		b.t.Errorf("set %q: %v", allow, n)
	}
	return r.GetNetwork().GetGenerationApplied()
}

// explain asks whether the sandbox may reach a destination by TCP.
func (b *box) explain(host string, port int32, want bool) {
	b.t.Helper()
	r, err := b.Client.Sandboxes.ExplainNetwork(b.t.Context(), &dsecv1.ExplainNetworkRequest{SandboxId: b.id, Host: host, Port: port})
	if err != nil {
		b.t.Fatalf("explain %s: %v", host, err)
	}
	if r.GetAllowed() != want {
		b.t.Errorf("explain %s:%d: %v, want %v", host, port, r, want)
	}
}

// explains tells whether a place is allowed.
func (b *box) explains(host string, port int32) bool {
	b.t.Helper()
	r, err := b.Client.Sandboxes.ExplainNetwork(b.t.Context(), &dsecv1.ExplainNetworkRequest{SandboxId: b.id, Host: host, Port: port})
	if err != nil {
		b.t.Fatalf("explain %s: %v", host, err)
	}
	return r.GetAllowed()
}

// info is the sandbox as the service knows it.
func (b *box) info() *dsecv1.Sandbox {
	b.t.Helper()
	r, err := b.Client.Sandboxes.GetSandbox(b.t.Context(), &dsecv1.GetSandboxRequest{SandboxId: b.id})
	if err != nil {
		b.t.Fatal(err)
	}
	return r.GetSandbox()
}

// events are those so far.
func (b *box) events() (out []*dsecv1.Event) {
	b.t.Helper()
	s, err := b.Client.Sandboxes.StreamEvents(b.t.Context(), &dsecv1.StreamEventsRequest{SandboxId: b.id})
	if err != nil {
		b.t.Fatal(err)
	}
	defer s.Close()
	for s.Receive() {
		if e := s.Msg().GetEvent(); e != nil {
			out = append(out, e)
		}
	}
	if err := s.Err(); err != nil {
		b.t.Fatal(err)
	}
	return out
}

// event waits for an event and returns it.
func (b *box) event(what string, is func(*dsecv1.Event) bool) *dsecv1.Event {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	s, err := b.Client.Sandboxes.StreamEvents(ctx, &dsecv1.StreamEventsRequest{SandboxId: b.id, Follow: true})
	if err != nil {
		b.t.Fatal(err)
	}
	defer s.Close()
	for s.Receive() {
		if e := s.Msg().GetEvent(); e != nil && is(e) {
			return e
		}
	}
	b.t.Fatalf("no event %s: %v", what, s.Err())
	return nil
}
