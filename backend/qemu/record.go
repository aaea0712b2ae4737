package qemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// Process is what the record of a machine says of its QEMU, so that whoever comes later finds it. Without a PID there is none yet.
type Process struct {
	Boot  string `json:"boot"` // of the node
	PID   int    `json:"pid,omitempty"`
	Start uint64 `json:"start,omitempty"` // clock ticks since boot: with the pid, names the process
}

// Open opens the process. Error: sandbox.ErrNotFound when it is gone or the number is another's.
func (r *Process) Open() (*os.File, error) {
	boot, err := linux.BootID()
	if err != nil {
		return nil, err
	}
	gone := fmt.Errorf("QEMU: %w", sandbox.ErrNotFound)
	if r.PID == 0 || r.Boot != boot {
		return nil, gone
	}
	p, err := linux.OpenPID(r.PID)
	if err != nil {
		return nil, gone
	}
	if start, err := linux.StartTime(r.PID); err != nil || start != r.Start {
		p.Close()
		return nil, gone
	}
	return p, nil
}

// Run starts a QEMU, has join put it where it belongs, and record note it. After an error it is killed.
func (r *Process) Run(cmd *exec.Cmd, join func(pid int) error, record func() error) (*os.File, error) {
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	// While it is not waited for, its number is no other's.
	p, err := linux.OpenPID(cmd.Process.Pid)
	if err == nil {
		err = join(cmd.Process.Pid)
	}
	if err == nil {
		r.PID = cmd.Process.Pid
		if r.Start, err = linux.StartTime(r.PID); err == nil {
			err = record()
		}
	}
	if err == nil {
		// Wherever machines can be killed first instead of the node's own processes, they are.
		_ = linux.WritePlain("/proc/"+strconv.Itoa(r.PID)+"/oom_score_adj", "500")
	} else {
		_ = cmd.Process.Kill()
		if p != nil {
			p.Close()
			p = nil
		}
	}
	go func() { _ = cmd.Wait() }() // who wants to know of its end holds the descriptor
	return p, err
}

// recordName is the name of a record in the directory of its machine.
const recordName = "record.json"

// WriteRecord replaces the record in a machine's directory. No fsync: it describes a process, which a crash of the node ends too.
func WriteRecord(dir string, r any) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, recordName)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// ReadRecord reads it. Error: sandbox.ErrNotFound where there is none, or what it says is none.
func ReadRecord(dir string, r any) error {
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err != nil || json.Unmarshal(b, r) != nil {
		return fmt.Errorf("record: %w", sandbox.ErrNotFound)
	}
	return nil
}
