package microvm

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/sandbox"
)

// warmLayers is how many layers a machine that was not booted for its environment can take; more boot.
const warmLayers = 6

// keptTemplates is how many templates stay on disk; the least lately used goes first.
const keptTemplates = 4

// template is a machine that was booted without an environment and saved: a file with its memory, which clones map
// privately, and its state.
type template struct {
	dir   string
	state []byte
}

// A template's directory, named by its key; the note is written last.
const (
	ramName   = "ram"
	stateName = "state"
	noteName  = "template.json"
)

// templateNote says what the files must be.
type templateNote struct {
	Size  int64  `json:"size"`  // of the memory, bytes
	RAM   []byte `json:"ram"`   // digest, see digestRAM
	State []byte `json:"state"` // SHA-256
	QEMU  string `json:"qemu"`  // its version, for people
}

// qemuVersion is what QEMU says of itself.
func (d *Driver) qemuVersion(ctx context.Context) (string, error) {
	d.imageMu.Lock()
	defer d.imageMu.Unlock()
	if d.version != "" {
		return d.version, nil
	}
	v, err := qemu.Version(ctx, d.cfg.QEMU)
	d.version = v
	return v, err
}

// key names a template by all that it depends on: kernel, dsec-init, command line, QEMU, its devices, and the processor.
func (m *hardware) key(version string) string {
	h := *m
	h.boot.kernel, h.boot.initrd = filepath.Base(m.boot.kernel), filepath.Base(m.boot.initrd) // named by their content
	h.ram, h.slots, h.clone, h.layers = "ram", warmLayers, false, nil
	sum := sha256.New()
	fmt.Fprintf(sum, "1 %s %q %s", version, h.args(), qemu.Processor())
	return fmt.Sprintf("%x", sum.Sum(nil)[:12])
}

// template returns the template of a shape, made where there is none. What is damaged is made anew.
func (d *Driver) template(ctx context.Context, m *hardware) (*template, error) {
	version, err := d.qemuVersion(ctx)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(d.cfg.Templates, m.key(version))
	t, err := openTemplate(dir, m.memory)
	if err == nil {
		now := time.Now()
		_ = os.Chtimes(dir, now, now)
		return t, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		d.log.Warn("a template is made again", "dir", dir, "err", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := d.pruneTemplates(); err != nil {
		return nil, err
	}
	t0 := time.Now()
	if err := d.makeTemplate(ctx, dir, m, version); err != nil {
		return nil, errors.Join(fmt.Errorf("make a template: %w", err), os.RemoveAll(dir+newSuffix))
	}
	d.observe("template", t0)
	return openTemplate(dir, m.memory)
}

// newSuffix ends the name of a template, or a snapshot, that is not ready.
const newSuffix = qemu.NewSuffix

// pruneTemplates removes what was not finished, and the oldest, so that there is room for one more.
func (d *Driver) pruneTemplates() error {
	if err := os.MkdirAll(d.cfg.Templates, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(d.cfg.Templates)
	if err != nil {
		return err
	}
	type old struct {
		path string
		at   time.Time
	}
	var have []old
	for _, e := range entries {
		path := filepath.Join(d.cfg.Templates, e.Name())
		st, err := e.Info()
		switch {
		case err != nil: // gone
		case strings.HasSuffix(path, newSuffix):
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		default:
			have = append(have, old{path, st.ModTime()})
		}
	}
	slices.SortFunc(have, func(a, b old) int { return b.at.Compare(a.at) })
	for _, o := range have[min(len(have), keptTemplates-1):] {
		if err := os.RemoveAll(o.path); err != nil { // machines that came of it keep the file
			return err
		}
	}
	return nil
}

// makeTemplate boots a machine without an environment, saves it, and ends it. Its id owns it: the next Sweep finds it.
func (d *Driver) makeTemplate(ctx context.Context, dir string, m *hardware, version string) (err error) {
	room, err := d.cfg.Saved.Reserve(dir, m.memory+maxState)
	if err != nil {
		return err
	}
	defer room.Close()
	tmp := dir + newSuffix
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	h := *m
	h.ram, h.slots = filepath.Join(tmp, ramName), warmLayers
	i, err := d.startMachine(ctx, sandbox.NewID(d.cfg.Edge), &h)
	if err != nil {
		return err
	}
	defer func() {
		if derr := i.Destroy(context.WithoutCancel(ctx)); derr != nil {
			err = errors.Join(err, derr)
		}
	}()
	ctx, cancel := i.within(ctx)
	defer cancel()
	ctx, stop := i.until(ctx)
	defer stop()
	state, err := i.bootAndSave(ctx)
	if err != nil {
		return i.bootFailure(err)
	}
	if err := i.Destroy(ctx); err != nil {
		return err
	}
	note := &templateNote{Size: m.memory, QEMU: version}
	if note.RAM, err = digestRAM(h.ram, m.memory); err != nil {
		return err
	}
	sum := sha256.Sum256(state)
	note.State = sum[:]
	b, err := json.Marshal(note)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{stateName: state, noteName: b} {
		if err := os.WriteFile(filepath.Join(tmp, name), data, 0o400); err != nil {
			return err
		}
	}
	if err := failpoint.Hit("microvm/template_saved"); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// bootAndSave waits until dsec-init answers, and stops the machine.
func (i *instance) bootAndSave(ctx context.Context) ([]byte, error) {
	if err := i.attach(ctx); err != nil {
		return nil, err
	}
	c, err := i.connect(ctx)
	if err != nil {
		return nil, err
	}
	c.Close()
	// Who comes next to either port finds it as it is at the first time.
	i.mu.Lock()
	ctl := i.ctl
	i.ctl, i.channel = nil, nil
	i.mu.Unlock()
	ctl.close()
	return i.suspend(ctx)
}

// openTemplate reads a template and looks whether it is what was made. Error: os.ErrNotExist when there is none.
func openTemplate(dir string, memory int64) (*template, error) {
	b, err := os.ReadFile(filepath.Join(dir, noteName))
	if err != nil {
		return nil, err
	}
	var note templateNote
	if err := json.Unmarshal(b, &note); err != nil {
		return nil, fmt.Errorf("template %s: %w", dir, err)
	}
	t := &template{dir: dir}
	if t.state, err = os.ReadFile(filepath.Join(dir, stateName)); err != nil {
		return nil, fmt.Errorf("template %s is damaged: %v", dir, err)
	}
	if !digested(t.state, note.State) || note.Size != memory {
		return nil, fmt.Errorf("template %s is damaged: its state is another", dir)
	}
	sum, err := digestRAM(filepath.Join(dir, ramName), memory)
	if err != nil {
		return nil, fmt.Errorf("template %s is damaged: %v", dir, err)
	}
	if !slices.Equal(sum, note.RAM) {
		return nil, fmt.Errorf("template %s is damaged: its memory is another", dir)
	}
	return t, nil
}

// digested tells whether b is what a digest is of.
func digested(b, sum []byte) bool {
	have := sha256.Sum256(b)
	return slices.Equal(have[:], sum)
}

// remove takes it away; machines that came of it go on.
func (t *template) remove() error { return os.RemoveAll(t.dir) }

// ramBlock is what is looked at once, bytes.
const ramBlock = 64 << 10

// digestRAM is the SHA-256 of a memory file's blocks that are not zero, each with its number: whether zeros are holes
// in the file may change.
func digestRAM(path string, size int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() != size {
		return nil, fmt.Errorf("its memory is of %d bytes, not %d", st.Size(), size)
	}
	const seekData = 3
	sum := sha256.New()
	buf, zero := make([]byte, ramBlock), string(make([]byte, ramBlock))
	for at := int64(0); at < size; at += ramBlock {
		data, err := f.Seek(at, seekData)
		if errors.Is(err, syscall.ENXIO) {
			break
		}
		if err != nil {
			return nil, err
		}
		at = data &^ (ramBlock - 1)
		n, err := f.ReadAt(buf, at)
		if err != nil && err != io.EOF {
			return nil, err
		}
		if string(buf[:n]) != zero[:n] {
			fmt.Fprintf(sum, "%d ", at)
			_, _ = sum.Write(buf[:n])
		}
	}
	return sum.Sum(nil), nil
}
