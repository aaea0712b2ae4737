package qemu

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// note is a record as backends have them.
type note struct {
	ID sandbox.ID `json:"id"`
	Process
	Memory int64 `json:"memory"`
}

// TestRecord: whoever reads a record finds the process that it is of, and no other; one that could not be recorded is ended.
func TestRecord(t *testing.T) {
	dir := t.TempDir()
	boot, err := linux.BootID()
	if err != nil {
		t.Fatal(err)
	}
	if err := ReadRecord(dir, &note{}); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("no record: %v", err)
	}
	r := &note{ID: "s1", Process: Process{Boot: boot}, Memory: 7}
	if _, err := r.Open(); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("before it runs: %v", err)
	}
	joined := 0
	p, err := r.Run(exec.Command("sleep", "600"), func(pid int) error { joined = pid; return nil }, func() error { return WriteRecord(dir, r) })
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer func() { _ = linux.SignalPID(p, 9) }()
	found := &note{}
	if err := ReadRecord(dir, found); err != nil || *found != *r || found.PID != joined || found.Start == 0 {
		t.Errorf("read %+v, %v; wrote %+v", found, err, r)
	}
	q, err := found.Open()
	if err != nil {
		t.Fatal(err)
	}
	q.Close()
	// What is in the file is what it was before there was this package.
	b, err := os.ReadFile(filepath.Join(dir, "record.json"))
	if err != nil || !strings.HasPrefix(string(b), `{"id":"s1","boot":"`+boot+`","pid":`) || !strings.HasSuffix(string(b), `,"memory":7}`) {
		t.Errorf("%s, %v", b, err)
	}
	for name, other := range map[string]Process{
		"a number that is another's": {Boot: boot, PID: found.PID, Start: found.Start + 1},
		"another boot":               {Boot: "x", PID: found.PID, Start: found.Start},
	} {
		if _, err := other.Open(); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "record.json"), b[:len(b)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ReadRecord(dir, &note{}); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("half a record: %v", err)
	}
	// One that cannot be put where it belongs, or recorded.
	wrong := errors.New("wrong")
	for _, step := range []int{1, 2} {
		var pid *os.File
		_, err := r.Run(exec.Command("sleep", "600"), func(n int) (err error) {
			if pid, err = linux.OpenPID(n); err == nil && step == 1 {
				err = wrong
			}
			return err
		}, func() error { return wrong })
		if !errors.Is(err, wrong) {
			t.Errorf("step %d: %v", step, err)
		}
		if pid != nil {
			for !linux.Ended(pid) {
			}
			pid.Close()
		}
	}
	if err := linux.SignalPID(p, 9); err != nil {
		t.Fatal(err)
	}
	for !linux.Ended(p) {
	}
	if _, err := r.Run(exec.Command("/nowhere"), nil, nil); err == nil {
		t.Error("a program that is not there runs")
	}
}
