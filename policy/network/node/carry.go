package node

import (
	"errors"
	"net/netip"
	"time"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/sandbox"
)

// carryFor is how long an address stays open under a new program because a connection uses it whose answer has expired:
// within that time its next packet must come.
const carryFor = 5 * time.Minute

// carry opens, ahead of a program, what was answered before for names that it allows: what the datapath learns belongs to one
// generation, and connections by name would be cut by a change that has nothing against them.
func (n *Network) carry(slot int, key string, generation uint64, prog *network.Program) error {
	now := time.Now()
	var expired []dns.Entry
	for _, e := range n.book.Entries(key) {
		if !now.Before(e.Until) {
			expired = append(expired, e)
		} else if err := n.learn(slot, generation, prog, e.Name, e.Addr, e.Until); err != nil {
			return err
		}
	}
	if len(expired) == 0 {
		return nil
	}
	flows, err := n.dp.Flows(slot)
	if err != nil {
		return err
	}
	used := map[netip.Addr]bool{}
	for _, f := range flows {
		if !f.Closed && !f.Inbound {
			used[f.Remote.Addr()] = true
		}
	}
	for _, e := range expired {
		if !used[e.Addr] {
			continue
		}
		if err := n.learn(slot, generation, prog, e.Name, e.Addr, now.Add(carryFor)); err != nil {
			return err
		}
	}
	return nil
}

// learn opens an address of a name as far as a program allows it. What cannot be opened is resolved anew by who needs it.
func (n *Network) learn(slot int, generation uint64, prog *network.Program, name string, addr netip.Addr, until time.Time) error {
	openings, _, ok := prog.Open(name, addr)
	if !ok {
		return nil
	}
	err := n.dp.Learn(slot, generation, addr, openings, until)
	if errors.Is(err, sandbox.ErrExhausted) || errors.Is(err, sandbox.ErrPermission) {
		n.log.Debug("an answer is not carried over to new rules", "name", name, "address", addr, "err", err)
		return nil
	}
	return err
}
