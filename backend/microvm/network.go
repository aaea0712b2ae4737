package microvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/opendsec/dsec/backend/linked"
	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

// Every machine has an interface, those of templates too, for none can be added later. It lies on a hub inside of QEMU that
// leads nowhere, until a sandbox with a network gets the machine: then a tap of the node's router, which QEMU is handed as an
// open file, is put on the same hub. The tap ends with QEMU.
//
// Neither the hub nor the tap has headers before frames, so that the guest is offered no offloads, and what it says of
// checksums and segments all the same ends in QEMU.
//
// The interface never announces itself: after a restore QEMU 7.2 has no timer for that, looks for it when the interface is
// reset, as a kernel does on its way down, and crashes.
const (
	nicNet = "hubport,id=nic,hubid=0"
	nic    = "netdev=nic,guest_announce=off,mac=02:d5:ec:00:00:00"
)

// network gives the machine its place in the node's network, under the spec's policy, and returns what it has to know of
// it: nil without one.
func (i *instance) network(ctx context.Context, spec *sandbox.Spec) (*control.Network, error) {
	if spec.Network == nil {
		return nil, nil
	}
	defer i.d.observe("network", time.Now())
	n := i.d.cfg.Network
	slot, err := i.d.places.Take()
	if err != nil {
		return nil, err
	}
	i.limits.Net, i.limits.Slot = true, slot
	if err := i.d.save(&i.limits); err != nil {
		i.limits.Net = false
		i.d.places.Release(slot)
		return nil, err
	}
	// From here on whoever removes the machine takes it away.
	tap, err := n.AttachTap(slot)
	if err != nil {
		return nil, err
	}
	defer tap.Close()
	if err := i.plug(ctx, tap); err != nil {
		return nil, fmt.Errorf("network of %s: %w", i.id, err)
	}
	if err := linked.SetPolicy(n, slot, i.id, spec.NetworkGeneration, spec.Network); err != nil {
		return nil, err
	}
	i.policy, i.generation = spec.Network, spec.NetworkGeneration
	return &control.Network{End: n.End(slot), Resolvers: n.Resolvers()}, nil
}

// plug puts a tap on the hub of the machine's interface.
func (i *instance) plug(ctx context.Context, tap *os.File) error {
	i.mu.Lock()
	m := i.monitor
	i.mu.Unlock()
	if m == nil {
		return errNoMonitor
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := m.Pass(ctx, "getfd", map[string]any{"fdname": "tap"}, tap); err != nil {
		return err
	}
	if err := m.Do(ctx, "netdev_add", map[string]any{"type": "tap", "id": "tap", "fd": "tap"}, nil); err != nil {
		return err
	}
	return m.Do(ctx, "netdev_add", map[string]any{"type": "hubport", "id": "out", "hubid": 0, "netdev": "tap"}, nil)
}

// SetNetwork implements sandbox.Networked.
func (i *instance) SetNetwork(_ context.Context, generation uint64, p sandbox.NetworkPolicy) error {
	if !i.limits.Net || i.d.cfg.Network == nil {
		return fmt.Errorf("network of %s: %w: it was created without one; create it with a rule that allows something", i.id, sandbox.ErrFailedPrecondition)
	}
	i.moving.Lock()
	defer i.moving.Unlock()
	if !i.Saved() { // else there is no link, and the next one is to be under it
		if err := linked.SetPolicy(i.d.cfg.Network, i.limits.Slot, i.id, generation, p); err != nil {
			return err
		}
	}
	i.policy, i.generation = p, generation
	return nil
}

// replug gives a machine that is brought back its place in the network again, under what it is to be under by now. Until that
// is known all is denied.
func (i *instance) replug(ctx context.Context) error {
	n := i.d.cfg.Network
	if !i.limits.Net || n == nil {
		return nil
	}
	tap, err := n.AttachTap(i.limits.Slot)
	if err != nil {
		return err
	}
	defer tap.Close()
	if err := i.plug(ctx, tap); err != nil {
		return fmt.Errorf("network of %s: %w", i.id, err)
	}
	if i.policy == nil {
		return nil
	}
	return linked.SetPolicy(n, i.limits.Slot, i.id, i.generation, i.policy)
}

// unplug takes the place of a machine whose QEMU has ended out of the network, if it has one.
func (d *Driver) unplug(id sandbox.ID) error {
	r, err := d.load(id)
	if errors.Is(err, sandbox.ErrNotFound) || err == nil && !r.Net {
		return nil
	}
	if err != nil {
		return err
	}
	return d.places.TakeAway(d.cfg.Network, r.Slot, func() error {
		r.Net = false
		return d.save(r)
	})
}

// sweepNetwork closes the links that are no machine's.
func (d *Driver) sweepNetwork() error {
	if d.cfg.Network == nil {
		return nil
	}
	return d.cfg.Network.Sweep(link.MicroVMs, d.places.Used)
}

// Linked are the machines of a state directory that have a link and whose QEMU runs, whether or not a driver is open on
// it. What cannot be read is taken for one that runs.
func Linked(stateDir string) ([]sandbox.ID, error) {
	d := &Driver{root: filepath.Join(stateDir, "run", "vm")} // load needs no more
	return linked.In(d.root, func(id sandbox.ID) (bool, *os.File, error) {
		r, err := d.load(id)
		if err != nil || !r.Net {
			return false, nil, err
		}
		p, err := r.process()
		return true, p, err
	})
}
