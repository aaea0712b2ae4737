package edge

import (
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// A read of a layer that the store could not serve is EIO to the program that made it, or SIGBUS if the file was mapped:
// nothing that the program did. Whoever serves layers writes each such read down before it fails
// (Config.StoreFault). A command that fails, or cannot be started, and one of whose sandbox's layers had such a fault
// while it ran, ends as store_fault. Which process met the fault is not known: commands beside it that fail for
// reasons of their own are excused too, while the store is at fault.

// metStoreFault tells whether a layer of the sandbox had a fault since the command began.
func (c *command) metStoreFault() bool {
	find := c.b.e.cfg.StoreFault
	return find != nil && find(c.b.created.GetLayers(), c.public.GetStartedAt().AsTime(), c.b.e.cfg.Clock.Wall())
}

// storeFault is the end of a command that met a fault; met is false when it did not.
func (c *command) storeFault() (f *sandbox.Failure, met bool) {
	if !c.metStoreFault() {
		return nil, false
	}
	return sandbox.NewFailure(sandbox.KindStoreFault, "a layer of the sandbox could not be read: the store did not answer in time, or gave damaged data"), true
}

// excusable tells whether a fault of the store is the likelier reason of a command that could not be started: it is, unless
// the platform knows one of its own. What it cannot tell, an I/O error among it, is internal.
func excusable(f *sandbox.Failure) bool {
	return f.Blame != sandbox.BlameInfra || f.Kind == sandbox.KindInternal
}

// StoreFaults tells whether one of the layers had a read that failed for the store, from one moment to another.
type StoreFaults func(layers []string, from, to time.Time) bool
