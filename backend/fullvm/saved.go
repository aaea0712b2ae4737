package fullvm

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
	"path/filepath"
	"strings"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/disk"
	"github.com/opendsec/dsec/sandbox"
)

// snapshotVersion is that of the files' meaning.
const snapshotVersion = 1

// snapshotNote says what a snapshot's files are and what they must be restored on.
type snapshotNote struct {
	Version   int           `json:"version"`
	QEMU      string        `json:"qemu"`
	Processor []byte        `json:"processor"` // SHA-256 of what tells processors apart
	KVM       bool          `json:"kvm"`
	CPUs      int           `json:"cpus"`
	Memory    int64         `json:"memory"` // of the sandbox, bytes
	Disk      int64         `json:"disk"`   // bytes
	Image     layer.Digest  `json:"image"`  // what its disk lies on
	Firmware  disk.Firmware `json:"firmware"`
	Seed      bool          `json:"seed"`
	Net       bool          `json:"net"` // it has an interface
	MAC       string        `json:"mac,omitempty"`
	Agent     bool          `json:"agent"` // there was one
	// SHA-256 of its files.
	State []byte            `json:"state_digest"`
	Files map[string][]byte `json:"file_digests"`
}

// files are the files of a machine that its copies need copies of.
func (r *record) files() []string {
	out := []string{diskName}
	if r.Firmware == disk.UEFI {
		out = append(out, varsName)
	}
	if r.Seed {
		out = append(out, seedName)
	}
	return out
}

// newNote describes a machine's snapshot, without digests.
func (d *Driver) newNote(ctx context.Context, r *record) (*snapshotNote, error) {
	version, err := exec.CommandContext(ctx, d.cfg.QEMU, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("ask QEMU for its version: %w", err)
	}
	first, _, _ := strings.Cut(string(version), "\n")
	cpu := sha256.Sum256([]byte(qemu.Processor()))
	n := &snapshotNote{Version: snapshotVersion, QEMU: first, Processor: cpu[:], KVM: d.kvm, CPUs: r.CPUs, Memory: r.Memory, Disk: r.Disk,
		Image: r.Image, Firmware: r.Firmware, Seed: r.Seed, Net: r.MAC != "", MAC: r.MAC}
	return n, nil
}

// digest notes what the files in dir are, but for the state.
func (n *snapshotNote) digest(dir string) (err error) {
	n.Files = map[string][]byte{}
	for _, name := range (&record{Firmware: n.Firmware, Seed: n.Seed}).files() {
		if n.Files[name], err = fileDigest(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func fileDigest(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return h.Sum(nil), err
}

func (n *snapshotNote) write(dir string) error {
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, noteName), b, 0o400)
}

// openSaved reads the note of a snapshot that fits this node and is whole. Errors: ErrNotFound, ErrFailedPrecondition when it
// is damaged or of another QEMU or processor.
func (d *Driver) openSaved(ctx context.Context, id sandbox.SnapshotID) (*snapshotNote, error) {
	dir := d.snapshotDir(id)
	refuse := func(format string, args ...any) (*snapshotNote, error) {
		return nil, fmt.Errorf("snapshot %s: %w: %s", id, sandbox.ErrFailedPrecondition, fmt.Sprintf(format, args...))
	}
	b, err := os.ReadFile(filepath.Join(dir, noteName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("snapshot %s: %w", id, sandbox.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	n := &snapshotNote{}
	if err := json.Unmarshal(b, n); err != nil {
		return refuse("it is damaged: its note: %v", err)
	}
	here, err := d.newNote(ctx, &record{})
	if err != nil {
		return nil, err
	}
	switch {
	case n.Version != here.Version:
		return refuse("it is of version %d, and this node reads %d", n.Version, here.Version)
	case n.QEMU != here.QEMU:
		return refuse("it was taken by %q, and this node has %q: a machine goes on under the QEMU that it was saved by only", n.QEMU, here.QEMU)
	case n.KVM != here.KVM:
		return refuse("it was taken with kvm=%v, and this node has kvm=%v", n.KVM, here.KVM)
	case !bytes.Equal(n.Processor, here.Processor):
		return refuse("it was taken on another model of processor: a machine goes on on the one that it was saved on only")
	}
	if _, ok := d.verified.Load(id); ok {
		return n, nil
	}
	have := *n
	if err := have.digest(dir); err != nil {
		return refuse("it is damaged: %v", err)
	}
	for name, want := range n.Files {
		if !bytes.Equal(have.Files[name], want) {
			return refuse("it is damaged: its %s is another", name)
		}
	}
	if state, err := fileDigest(filepath.Join(dir, stateName)); err != nil || !bytes.Equal(state, n.State) || len(n.Files) != len(have.Files) {
		return refuse("it is damaged: its state is another")
	}
	d.verified.Store(id, true)
	return n, nil
}

// goOn makes a machine that goes on from the last of the spec's snapshots.
func (d *Driver) goOn(ctx context.Context, id sandbox.ID, spec *sandbox.Spec, img *image) (_ *instance, err error) {
	from := spec.Snapshots[len(spec.Snapshots)-1]
	n, err := d.openSaved(ctx, from)
	if err != nil {
		return nil, err
	}
	m, err := d.hardware(spec, img)
	if err != nil {
		return nil, err
	}
	switch {
	case spec.CloudInit != nil:
		return nil, fmt.Errorf("snapshot %s: %w: what goes on in it has started already, with the cloud-init that it had: leave cloud_init out", from, sandbox.ErrInvalid)
	case n.CPUs != m.cpus || n.Memory != spec.Limits.MemoryBytes || n.Disk != spec.Limits.DiskBytes&^(disk.SectorSize-1):
		return nil, fmt.Errorf("snapshot %s: %w: what goes on in it has the size that it had: %d processors, %d bytes of memory, %d of disk",
			from, sandbox.ErrInvalid, n.CPUs, n.Memory, n.Disk)
	case n.Image != img.digest || n.Firmware != m.firmware:
		return nil, fmt.Errorf("snapshot %s: %w: its machine started from another disk", from, sandbox.ErrInvalid)
	case spec.Network != nil && !n.Net:
		return nil, fmt.Errorf("snapshot %s: %w: its machine has no network interface, and gets none later: leave the rules out", from, sandbox.ErrUnsupported)
	case spec.Network != nil && !n.Agent:
		return nil, fmt.Errorf("snapshot %s: %w: nobody in its machine could give a copy an address of its own (hack/fullvm-agent.sh installs who does): copies of it go on without a network, from a snapshot and without rules (dsec create --snapshot)",
			from, sandbox.ErrUnsupported)
	}
	m.seed, m.incoming, m.mac = n.Seed, true, n.MAC
	r, err := d.note(id, spec, img, m, n.Disk)
	if err != nil {
		return nil, err
	}
	for _, name := range r.files() {
		if err := d.cfg.Saved.Copy(ctx, filepath.Join(d.dir(id), name), filepath.Join(d.snapshotDir(from), name)); err != nil {
			return nil, err
		}
	}
	r.MAC = n.MAC
	tap, err := d.plug(r, spec)
	if err != nil {
		return nil, err
	}
	if tap != nil {
		defer tap.Close()
		m.tap = true
	}
	if err := d.bound(id, spec.Limits, m.memory); err != nil {
		return nil, err
	}
	p, err := d.startQEMU(r, m, img, tap)
	if err != nil {
		return nil, err
	}
	i, err := d.newInstance(r, p)
	if err != nil {
		return nil, err
	}
	i.env = spec.Env
	defer func() {
		if err != nil {
			err = i.bootFailure(err)
			i.forget()
		}
	}()
	if err := failpoint.Hit("fullvm/started"); err != nil {
		return nil, err
	}
	ctx, stop := i.until(ctx)
	defer stop()
	if err := i.attachMonitor(ctx); err != nil {
		return nil, err
	}
	if err := i.load(ctx, filepath.Join(d.snapshotDir(from), stateName)); err != nil {
		return nil, err
	}
	if err := failpoint.Hit("fullvm/restored"); err != nil {
		return nil, err
	}
	if err := i.run(ctx, "cont"); err != nil {
		return nil, err
	}
	if err := i.attachAgent(ctx); err != nil {
		return nil, err
	}
	if n.Agent {
		if err := i.renewAgent(ctx); err != nil {
			return nil, err
		}
	}
	i.mu.Lock()
	i.image = img
	i.mu.Unlock()
	return i, nil
}

// load gives the machine a saved state.
func (i *instance) load(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return qemu.Load(ctx, monitor{i}, func(w io.Writer) error {
		_, err := io.Copy(w, f)
		return err
	})
}
