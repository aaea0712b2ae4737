package microvm_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/sandbox"
)

// TestTooLarge: more processors or memory than the node has is refused with what it has.
func TestTooLarge(t *testing.T) {
	d, err := microvm.New(t.Context(), microvm.Config{StateDir: t.TempDir(), Edge: sandbox.NewEdgeID(), QEMU: "no-such-qemu"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(t.Context())
	total, err := linux.TotalMemory()
	if err != nil {
		t.Fatal(err)
	}
	cpus := int64(runtime.NumCPU())
	for _, c := range []struct {
		limits sandbox.Limits
		want   string
	}{
		{sandbox.Limits{MemoryBytes: 64 << 20, CPUMillis: cpus*1000 + 1}, fmt.Sprintf("this node has %d processors", cpus)},
		{sandbox.Limits{MemoryBytes: total, CPUMillis: 1000}, fmt.Sprintf("this node has %d MiB", total>>20)},
	} {
		_, err := d.Create(t.Context(), &sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: "x"}}, Limits: c.limits})
		if !errors.Is(err, sandbox.ErrExhausted) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.limits, err, c.want)
		}
	}
	fits := sandbox.Limits{MemoryBytes: 64 << 20, CPUMillis: cpus * 1000}
	if _, err := d.Create(t.Context(), &sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: "x"}}, Limits: fits}); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("what fits goes on to the next reason: %v", err)
	}
}

// TestNoMachine: a program in QEMU's place that ends, or runs and never answers, ends the creation within its deadline, with what
// it said; nothing is left.
func TestNoMachine(t *testing.T) {
	factory(t) // a kernel, or a reason to skip
	store, digest, err := testkit.BaseLayer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bin, err := testkit.Init(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	kernels, err := testkit.MachineKernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ script, message, evidence string }{
		"Ends":         {"echo no luck >&2; exit 3", "ended with 3", "no luck"},
		"NeverAnswers": {"echo waiting; exec sleep 600", "did not answer within 1s", "waiting"},
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			program := filepath.Join(t.TempDir(), "qemu")
			if err := os.WriteFile(program, []byte("#!/bin/sh\n[ \"$1\" = --version ] && echo 1 && exit\n"+c.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			d, err := microvm.New(t.Context(), microvm.Config{StateDir: state, Edge: sandbox.NewEdgeID(), InitBinary: bin, QEMU: program,
				KernelDir: kernels, Layers: posix.NewNode(store), BootTimeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			_, err = d.Create(t.Context(), &sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: string(digest)}},
				Limits: sandbox.Limits{MemoryBytes: 64 << 20, CPUMillis: 1000, Pids: 100, DiskBytes: 16 << 20}})
			var f *sandbox.Failure
			if !errors.As(err, &f) || f.Kind != sandbox.KindBootFailed || !strings.Contains(f.Message, c.message) || !strings.Contains(f.Evidence, c.evidence) {
				t.Errorf("%v, want %q\n%+v", err, c.message, f)
			}
			if err := d.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if left, _ := filepath.Glob(filepath.Join(state, "run/vm/s*")); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}
