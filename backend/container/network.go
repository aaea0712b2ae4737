package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

// resolvConf is what a shell's programs find as /etc/resolv.conf.
func (d *Driver) resolvConf(net bool) string {
	if !net {
		return noResolver
	}
	var b strings.Builder
	for _, a := range d.cfg.Network.Resolvers() {
		b.WriteString("nameserver " + a.String() + "\n")
	}
	return b.String() + "options timeout:3 attempts:2\n"
}

// attach makes the shell's link, on which everything is denied.
func (d *Driver) attach(sh *shell) error {
	if !link.Containers.Has(sh.slot) {
		return fmt.Errorf("network of slot %d: %w: containers have %d on a node", sh.slot, sandbox.ErrExhausted, link.Containers.To)
	}
	netns, err := linux.OpenPlain("/proc/"+strconv.Itoa(sh.pid)+"/ns/net", os.O_RDONLY)
	if err != nil {
		return err
	}
	defer netns.Close()
	group, err := sh.groups.Open()
	if err != nil {
		return err
	}
	defer group.Close()
	return d.cfg.Network.Attach(sh.slot, netns, group)
}

// setNetwork puts a sandbox under a policy.
func (d *Driver) setNetwork(slot int, id sandbox.ID, generation uint64, p sandbox.NetworkPolicy) error {
	prog, ok := p.(*network.Program)
	if m, member := p.(*network.Member); member {
		if err := d.cfg.Network.Join(slot, string(id), m.Network, m.Name); err != nil {
			return err
		}
		prog, ok = m.Program, true
	}
	if !ok {
		return fmt.Errorf("network of %s: %w: containers take a *network.Program, not a %T", id, sandbox.ErrInvalid, p)
	}
	return d.cfg.Network.Set(slot, string(id), generation, prog)
}

// SetNetwork implements sandbox.Networked.
func (i *instance) SetNetwork(_ context.Context, generation uint64, p sandbox.NetworkPolicy) error {
	if !i.net || i.d.cfg.Network == nil {
		return fmt.Errorf("network of %s: %w: it was created without one; create it with a rule that allows something", i.id, sandbox.ErrFailedPrecondition)
	}
	return i.d.setNetwork(i.slot, i.id, generation, p)
}

// networked tells whether a sandbox has a network.
func (d *Driver) networked() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, i := range d.instances {
		if i.net {
			return true
		}
	}
	return false
}

// detach closes the link of an id, if it has one.
func (d *Driver) detach(id sandbox.ID) error {
	if d.cfg.Network == nil {
		return nil
	}
	r, err := d.load(id)
	if errors.Is(err, sandbox.ErrNotFound) || err == nil && !r.Net {
		return nil
	}
	if err != nil {
		return err
	}
	return d.cfg.Network.Detach(r.Slot)
}

// sweepNetwork closes the links of sandboxes that are not to be kept.
func (d *Driver) sweepNetwork(keep func(sandbox.ID) bool) error {
	if d.cfg.Network == nil {
		return nil
	}
	used := map[int]bool{}
	d.mu.Lock()
	for id, i := range d.instances {
		used[i.slot] = i.net && keep(id)
	}
	d.mu.Unlock()
	return d.cfg.Network.Sweep(link.Containers, func(slot int) bool { return used[slot] })
}
