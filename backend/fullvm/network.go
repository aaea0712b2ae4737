package fullvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opendsec/dsec/backend/linked"
	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

// A machine with a network has one interface, which is a tap of the node's router: QEMU is handed its queue as an open file,
// and the link ends with QEMU. Before frames there are no headers, so that the system inside is offered no offloads. One
// without a network has no interface at all.

// plug gives a machine its place in the node's network, under the spec's policy; the tap is for QEMU. Nil without a network.
func (d *Driver) plug(r *record, spec *sandbox.Spec) (*os.File, error) {
	if spec.Network == nil {
		return nil, nil
	}
	slot, err := d.places.Take()
	if err != nil {
		return nil, err
	}
	r.Net, r.Slot = true, slot
	if end := d.cfg.Network.End(slot); r.MAC == "" {
		r.MAC = hardwareAddr(&end)
	}
	if err := d.save(r); err != nil {
		r.Net = false
		d.places.Release(slot)
		return nil, err
	}
	// From here on whoever removes the machine takes it away.
	tap, err := d.cfg.Network.AttachTap(slot)
	if err != nil {
		return nil, err
	}
	if err := linked.SetPolicy(d.cfg.Network, slot, r.ID, spec.NetworkGeneration, spec.Network); err != nil {
		tap.Close()
		return nil, err
	}
	return tap, nil
}

// inside is what the machine has to make of its interface; nil without one.
func (d *Driver) inside(r *record) *control.Network {
	if !r.Net || d.cfg.Network == nil {
		return nil
	}
	return &control.Network{End: d.cfg.Network.End(r.Slot), Resolvers: d.cfg.Network.Resolvers()}
}

// networkConfig tells cloud-init the same, in its second format.
func networkConfig(n *control.Network) []byte {
	e := &n.End
	var servers []string
	for _, a := range n.Resolvers {
		servers = append(servers, fmt.Sprintf("%q", a))
	}
	return fmt.Appendf(nil, `version: 2
ethernets:
  eth0:
    match: {macaddress: %q}
    set-name: eth0
    mtu: %d
    dhcp4: false
    dhcp6: false
    accept-ra: false
    addresses: ["%s/32", "%s/128"]
    routes:
      - {to: 0.0.0.0/0, via: %q, on-link: true}
      - {to: "::/0", via: %q, on-link: true}
    nameservers: {addresses: [%s]}
`, hardwareAddr(e), e.MTU, e.Address4, e.Address6, e.Gateway4, e.Gateway6, strings.Join(servers, ", "))
}

// hardwareAddr is an interface's address in text.
func hardwareAddr(e *linux.LinkEnd) string {
	m := e.MAC
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// SetNetwork implements sandbox.Networked.
func (i *instance) SetNetwork(_ context.Context, generation uint64, p sandbox.NetworkPolicy) error {
	if !i.limits.Net || i.d.cfg.Network == nil {
		return fmt.Errorf("network of %s: %w: it was created without one; create it with a rule that allows something", i.id, sandbox.ErrFailedPrecondition)
	}
	return linked.SetPolicy(i.d.cfg.Network, i.limits.Slot, i.id, generation, p)
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
	return d.cfg.Network.Sweep(link.FullMachines, d.places.Used)
}

// Linked are the machines of a state directory that have a link and whose QEMU runs, whether or not a driver is open on
// it. What cannot be read is taken for one that runs.
func Linked(stateDir string) ([]sandbox.ID, error) {
	d := &Driver{root: filepath.Join(stateDir, "run", "fullvm")} // load needs no more
	return linked.In(d.root, func(id sandbox.ID) (bool, *os.File, error) {
		r, err := d.load(id)
		if err != nil || !r.Net {
			return false, nil, err
		}
		p, err := r.process()
		return true, p, err
	})
}
