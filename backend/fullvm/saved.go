package fullvm

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

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
	qemu.Made
	CPUs     int           `json:"cpus"`
	Memory   int64         `json:"memory"` // of the sandbox, bytes
	Disk     int64         `json:"disk"`   // bytes
	Image    layer.Digest  `json:"image"`  // what its disk lies on
	Firmware disk.Firmware `json:"firmware"`
	Seed     bool          `json:"seed"`
	Net      bool          `json:"net"` // it has an interface
	MAC      string        `json:"mac,omitempty"`
	Agent    bool          `json:"agent"` // there was one
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
	version, err := qemu.Version(ctx, d.cfg.QEMU)
	if err != nil {
		return nil, err
	}
	n := &snapshotNote{Made: qemu.MadeHere(snapshotVersion, version, d.kvm), CPUs: r.CPUs, Memory: r.Memory, Disk: r.Disk,
		Image: r.Image, Firmware: r.Firmware, Seed: r.Seed, Net: r.MAC != "", MAC: r.MAC}
	return n, nil
}

// digest notes what the files in dir are, but for the state.
func (n *snapshotNote) digest(dir string) (err error) {
	n.Files = map[string][]byte{}
	for _, name := range (&record{Firmware: n.Firmware, Seed: n.Seed}).files() {
		if n.Files[name], err = qemu.FileDigest(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func (n *snapshotNote) write(dir string) error {
	return qemu.WriteNote(filepath.Join(dir, noteName), n)
}

// openSaved reads the note of a snapshot that fits this node and is whole. Errors: ErrNotFound, ErrFailedPrecondition when it
// is damaged or of another QEMU or processor.
func (d *Driver) openSaved(ctx context.Context, id sandbox.SnapshotID) (*snapshotNote, error) {
	dir := d.snapshotDir(id)
	refuse := func(format string, args ...any) (*snapshotNote, error) {
		return nil, fmt.Errorf("snapshot %s: %w: %s", id, sandbox.ErrFailedPrecondition, fmt.Sprintf(format, args...))
	}
	n := &snapshotNote{}
	if err := qemu.ReadNote(filepath.Join(dir, noteName), n); err != nil {
		return nil, fmt.Errorf("snapshot %s: %w", id, err)
	}
	here, err := d.newNote(ctx, &record{})
	if err != nil {
		return nil, err
	}
	if err := n.Fits(here.Made); err != nil {
		return nil, fmt.Errorf("snapshot %s: %w", id, err)
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
	if state, err := qemu.FileDigest(filepath.Join(dir, stateName)); err != nil || !bytes.Equal(state, n.State) || len(n.Files) != len(have.Files) {
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
	w, err := qemu.OpenWords(d.dir(id))
	if err != nil {
		return nil, err
	}
	defer w.Close() // the instance has its own by then
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
