package microvm_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

// program compiles rules.
func (i *internet) program(t *testing.T, rules ...string) *network.Program {
	t.Helper()
	p, err := network.ParseTexts(network.Builtin(), rules...)
	if err != nil {
		t.Fatal(err)
	}
	c := i.Node.Compiler()
	prog, err := c.Compile(network.Layer{Source: network.FromSpec, Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

// links are the slots that have a link, as the kernel says.
func links(t *testing.T, state string) []int {
	t.Helper()
	r, err := link.Find(link.Config{Dir: filepath.Join(state, "network"), Plan: link.DefaultPlan()})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	slots, err := r.Slots()
	if err != nil {
		t.Fatal(err)
	}
	return slots
}

// TestNetworkSuccessor: links outlive the processes of the node, are found again by the next, and end with the machine, whoever
// kills it.
func TestNetworkSuccessor(t *testing.T) {
	slow(t)
	f, inet := netFactory(t, 0, "")
	state, node := t.TempDir(), sandbox.NewEdgeID()
	first := f.Backend(t, node, state)
	sweepAtEnd(t, f, node, state)
	spec := &sandbox.Spec{Backend: sandbox.BackendMicroVM, Layers: []sandbox.LayerRef{{Digest: f.Layers[0].Digest}},
		Limits:  sandbox.Limits{MemoryBytes: 128 << 20, CPUMillis: 1000, Pids: 100, DiskBytes: 16 << 20, ShmBytes: 8 << 20},
		Network: inet.program(t, inet.One.String()+"/tcp"), NetworkGeneration: 1}
	var made [2]sandbox.Instance
	for i := range made {
		var err error
		if made[i], err = first.Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := links(t, state), []int{link.MicroVMs.From, link.MicroVMs.From + 1}; !slices.Equal(got, want) {
		t.Errorf("links %v, want %v", got, want)
	}
	keep := made[0].ID()
	first.(*microvm.Driver).Abandon()
	inet.Reopen(t)
	second := f.Backend(t, node, state)
	inst, err := second.Recover(t.Context(), keep, made[0].Handle())
	if err != nil {
		t.Fatal(err)
	}
	if err := inst.(sandbox.Networked).SetNetwork(t.Context(), 2, inet.program(t, "none")); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Sweep(t.Context(), func(id sandbox.ID) bool { return id == keep }); err != nil {
		t.Fatal(err)
	}
	if got := links(t, state); !slices.Equal(got, []int{link.MicroVMs.From}) {
		t.Errorf("links after the sweep: %v", got)
	}
	if got, err := microvm.Linked(state); err != nil || !slices.Equal(got, []sandbox.ID{keep}) {
		t.Errorf("linked %v, %v", got, err)
	}
	p, err := second.(*microvm.Driver).Process(keep)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := linux.SignalPID(p, 9); err != nil {
		t.Fatal(err)
	}
	<-inst.Done()
	if err := inst.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := links(t, state); len(got) != 0 {
		t.Errorf("links after the end: %v", got)
	}
	if got := inet.Node.Known(); len(got) != 0 {
		t.Errorf("the network still knows %v", got)
	}
	if err := second.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
