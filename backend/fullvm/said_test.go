package fullvm_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/backend/fullvm"
	"github.com/opendsec/dsec/backend/fullvm/fullvmtest"
	"github.com/opendsec/dsec/backend/saved"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/sandbox"
)

// TestSaid: a QEMU that says much neither fills the node's disk nor waits for whoever reads it, and what it said last is told when it
// is gone.
func TestSaid(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip(err)
	}
	store, err := posix.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	layer := importDisk(t, store, fullvmtest.Echo("x"), "")
	program := filepath.Join(t.TempDir(), "qemu")
	script := "#!/bin/sh\nhead -c 4000000 /dev/zero | tr '\\0' x >&2\nexec qemu-system-x86_64 \"$@\"\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	d, err := fullvm.New(t.Context(), fullvm.Config{StateDir: state, Edge: sandbox.NewEdgeID(), QEMU: program, Layers: posix.NewNode(store), BootTimeout: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	i, err := d.Create(t.Context(), &sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: layer.Digest}},
		Limits: sandbox.Limits{MemoryBytes: 32 << 20, CPUMillis: 1000, DiskBytes: 4 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := i.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if n, err := saved.Bytes(filepath.Join(state, "run/fullvm", string(i.ID()))); err != nil || n > 2<<20 {
		t.Errorf("a machine that has written nothing takes %d, %v", n, err)
	}
	p, err := d.Process(i.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := linux.SignalPID(p, 9); err != nil {
		t.Fatal(err)
	}
	<-i.Done()
	if f := i.End(); f == nil || f.Kind != sandbox.KindVMMCrashed || !strings.HasPrefix(f.Evidence, "xxxx") || len(f.Evidence) > 4<<10 {
		t.Errorf("it ended as %v", f)
	}
}
