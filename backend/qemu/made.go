package qemu

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/opendsec/dsec/sandbox"
)

// Made says by what a machine's state was saved: only the same can load it. It is a part of each note beside saved files.
type Made struct {
	Version   int    `json:"version"` // of the files' meaning
	QEMU      string `json:"qemu"`
	Processor []byte `json:"processor"` // SHA-256 of what tells processors apart
	KVM       bool   `json:"kvm"`
}

// MadeHere is what this node saves by, with a QEMU of that version.
func MadeHere(version int, qemu string, kvm bool) Made {
	cpu := sha256.Sum256([]byte(Processor()))
	return Made{Version: version, QEMU: qemu, Processor: cpu[:], KVM: kvm}
}

// Fits refuses what was saved by something else than here, with the reason: sandbox.ErrFailedPrecondition.
func (m *Made) Fits(here Made) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", sandbox.ErrFailedPrecondition, fmt.Sprintf(format, args...))
	}
	switch {
	case m.Version != here.Version:
		return refuse("it is of version %d, and this node reads %d", m.Version, here.Version)
	case m.QEMU != here.QEMU:
		return refuse("it was taken by %q, and this node has %q: a machine goes on under the QEMU that it was saved by only", m.QEMU, here.QEMU)
	case m.KVM != here.KVM:
		return refuse("it was taken with kvm=%v, and this node has kvm=%v", m.KVM, here.KVM)
	case !bytes.Equal(m.Processor, here.Processor):
		return refuse("it was taken on another model of processor: a machine goes on on the one that it was saved on only")
	}
	return nil
}

// Version is what a QEMU says of itself.
func Version(ctx context.Context, program string) (string, error) {
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask QEMU for its version: %w", err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return first, nil
}

// WriteNote writes what lies beside it, last.
func WriteNote(path string, note any) error {
	b, err := json.Marshal(note)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o400)
}

// ReadNote reads a note. Errors: sandbox.ErrNotFound, sandbox.ErrFailedPrecondition where it is damaged.
func ReadNote(path string, note any) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return sandbox.ErrNotFound
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, note); err != nil {
		return fmt.Errorf("%w: it is damaged: its note: %v", sandbox.ErrFailedPrecondition, err)
	}
	return nil
}

// FileDigest is the SHA-256 of a file.
func FileDigest(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return h.Sum(nil), err
}
