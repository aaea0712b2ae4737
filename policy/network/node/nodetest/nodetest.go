// Package nodetest gives the tests of drivers a node's network, with two servers on an internet of its own.
package nodetest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/opendsec/dsec/internal/linux/feature"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/policy/network/networktest"
	"github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/sandbox"
)

// Internet is a network for a driver's sandboxes, with two servers on it that send back what they get.
type Internet struct {
	Node       *node.Network // nil where the kernel lacks what it needs
	One, Other netip.AddrPort
	// Enforcer is datapath.EBPF or datapath.Nftables; "" = the best that the kernel takes.
	Enforcer string
	Inet     *networktest.Internet
	// Close says that the driver leaves its closing to the end of the test.
	Close bool
	// Events hears of what happens to sandboxes' traffic; nil: nobody does.
	Events func(node.Event)

	cfg node.Config
}

// Reopen closes it and opens it again, as a successor of the process would.
func (i *Internet) Reopen(t testing.TB) *node.Network {
	t.Helper()
	if err := i.Node.Close(); err != nil {
		t.Fatalf("close the network: %v", err)
	}
	var err error
	if i.Node, err = node.Open(i.cfg, i.Events); err != nil {
		t.Fatalf("open the network again: %v", err)
	}
	return i.Node
}

// Open makes it, below a driver's state directory. It is taken away at the end of the test, when all sandboxes have ended.
func (i *Internet) Open(t testing.TB, state string) *node.Network {
	t.Helper()
	for _, f := range feature.Network() {
		if _, err := f.Probe(); f.Level != feature.Later && err != nil {
			t.Logf("without networks: this kernel has no %s: %v", f.Name, err)
			return nil
		}
	}
	inet := networktest.New(t)
	i.Inet = inet
	host := inet.Host()
	space, err := host.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	i.One, i.Other = serve(t, inet), serve(t, inet)
	up := link.DefaultUplink()
	up.Host = space
	dir := filepath.Join(state, "network")
	i.cfg = node.Config{
		Dir: dir, Uplink: up, Enforcer: i.Enforcer, Addresses: []netip.Prefix{}, Upstreams: []netip.AddrPort{netip.AddrPortFrom(networktest.ResolverV4, 53)},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return host.Dial(ctx, network, address)
		},
	}
	i.Node, err = node.Open(i.cfg, i.Events)
	if errors.Is(err, sandbox.ErrUnsupported) {
		t.Logf("without networks: %v", err)
		i.Node = nil
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if i.Close {
			if slots := i.Node.Known(); len(slots) > 0 {
				t.Errorf("the network still knows %q", slots)
			}
			if err := i.Node.Close(); err != nil {
				t.Errorf("close the network: %v", err)
			}
		}
		if err := host.Do(func() error { return node.Remove(dir) }); err != nil {
			t.Errorf("remove the network: %v", err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is left", dir)
		}
	})
	return i.Node
}

// serve answers bytes at an address of its own.
func serve(t testing.TB, inet *networktest.Internet) netip.AddrPort {
	t.Helper()
	ln, err := inet.Listen("tcp", netip.AddrPortFrom(inet.Site("", networktest.V4(1), networktest.Unlisted()).V4[0], 7000).String())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				stop := context.AfterFunc(ctx, func() { c.Close() })
				defer stop()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { cancel(); ln.Close(); wg.Wait() })
	return netip.MustParseAddrPort(ln.Addr().String())
}
