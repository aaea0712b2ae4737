package node

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/netproxy"
)

// check is the check of names: of this process (netproxy.Check) or of another (netproxy.Client).
type check interface {
	// Set puts a sandbox under a program, and cuts what that forbids.
	Set(netproxy.Place) error
	// Recheck cuts what the program of a sandbox forbids.
	Recheck(key string)
	// Part ends the connections of a sandbox whose processes are gone, and returns when they are told of.
	Part(key string)
	// Forget ends and forgets the sandbox that has the addresses, if there is one.
	Forget(addresses [2]netip.Addr)
	// Answered tells what a sandbox is about to be answered.
	Answered(key string, entries ...dns.Entry)
	// Close ends this process's part, and Destroy all of it.
	Close() error
	Destroy() error
}

// openCheck begins to check names.
func (n *Network) openCheck(ctx context.Context) (err error) {
	if n.cfg.Proxy != "" {
		n.check, err = netproxy.Open(netproxy.ClientConfig{
			Socket: n.cfg.Proxy, Dir: n.cfg.Dir, Plan: n.cfg.Plan, Port: proxyPort, Compiler: n.Compiler(), Book: n.book,
			Events: n.proxied, Died: n.died, Log: n.log,
		})
		return err
	}
	c, err := netproxy.New(netproxy.Config{Dial: n.cfg.Dial, Book: n.book, Events: n.proxied, Log: n.log})
	if err != nil {
		return err
	}
	var listeners []net.Listener
	for _, gw := range n.Resolvers() {
		ln, err := n.router.Listen(netip.AddrPortFrom(gw, proxyPort), true)
		if err != nil {
			return err
		}
		listeners = append(listeners, ln)
	}
	n.check = c
	n.wg.Go(func() {
		if err := c.Serve(ctx, listeners...); err != nil && ctx.Err() == nil {
			n.log.Error("the checking proxy has ended", "err", err)
		}
	})
	return nil
}

// addresses of a slot.
func (n *Network) addresses(slot int) [2]netip.Addr {
	return [2]netip.Addr{n.cfg.Plan.Address4(slot), n.cfg.Plan.Address6(slot)}
}

// placeAt is a sandbox as the check knows it.
func (n *Network) placeAt(slot int, key string, prog *network.Program) netproxy.Place {
	return netproxy.Place{Key: key, Addresses: n.addresses(slot), Program: prog}
}

// died tells the sandboxes whose connections have ended with the process that had them.
func (n *Network) died(keys []string) {
	now := time.Now()
	for _, key := range keys {
		n.tell(Event{Time: now, Key: key, Kind: "failed", Protocol: "tcp",
			Why: "the node's process that checks names has ended, and with it the connections that were checked: connect again"})
	}
}

// teller tells the check what a sandbox is about to be answered, once it is open.
type teller struct {
	n    *Network
	next dns.Opener
}

func (t teller) Open(ctx context.Context, g dns.Grant) error {
	if err := t.next.Open(ctx, g); err != nil {
		return err
	}
	if t.n.cfg.Proxy != "" { // else it has the book itself
		t.n.check.Answered(g.Key, g.Entries()...)
	}
	return nil
}
