package microvm

import (
	"github.com/opendsec/dsec/backend/saved"
	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/sandbox"
)

// UseNetwork gives the driver a network, before its first machine.
func (d *Driver) UseNetwork(n *node.Network) { d.cfg.Network = n }

// Abandon leaves everything as a killed process does: what runs goes on, and nobody is connected to it.
func (d *Driver) Abandon() {
	p := d.pool
	p.mu.Lock()
	p.closed = true
	stopped := p.stopped
	if stopped != nil {
		p.stop()
	}
	p.mu.Unlock()
	if stopped != nil {
		<-stopped
	}
	d.mu.Lock()
	var all []*instance
	for _, i := range d.instances {
		all = append(all, i)
	}
	d.mu.Unlock()
	for _, i := range all {
		i.forget()
	}
	d.watch.Close()
}

// SnapshotDir is where a snapshot's files are.
func (d *Driver) SnapshotDir(id sandbox.SnapshotID) string { return d.snapshotDir(id) }

// ForgetVerified makes its files be compared with their digests again.
func (d *Driver) ForgetVerified(id sandbox.SnapshotID) { d.verified.Delete(id) }

// UseLayersAs says how layers come to machines, before the first.
func (d *Driver) UseLayersAs(how string) { d.cfg.LayersAs = how }

// UseSaved bounds what is saved.
func (d *Driver) UseSaved(s *saved.Space) { d.cfg.Saved = s }

// MostSaved is what the memory of a sandbox takes at most when it is saved, bytes.
func MostSaved(l sandbox.Limits) int64 { return shapeOf(l).memory + maxState }

// UseKernel makes what comes next boot another kernel, as the successor of an edge does that finds one.
func (d *Driver) UseKernel(r *debkernel.Release) {
	d.imageMu.Lock()
	defer d.imageMu.Unlock()
	d.cfg.FindKernel, d.image = func() (*debkernel.Release, error) { return r, nil }, nil
}
