package container_test

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
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// internet is a network for the driver's sandboxes, with two servers on it.
type internet struct {
	node       *node.Network
	one, other netip.AddrPort
}

// open makes it; nil where the kernel lacks what it needs.
func (i *internet) open(t testing.TB, state string) *node.Network {
	t.Helper()
	for _, f := range feature.Network() {
		if _, err := f.Probe(); f.Level != feature.Later && err != nil {
			t.Logf("without networks: this kernel has no %s: %v", f.Name, err)
			return nil
		}
	}
	inet := networktest.New(t)
	host := inet.Host()
	space, err := host.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	i.one, i.other = serve(t, inet), serve(t, inet)
	up := link.DefaultUplink()
	up.Host = space
	dir := filepath.Join(state, "network")
	i.node, err = node.Open(node.Config{
		Dir: dir, Uplink: up, Addresses: []netip.Prefix{}, Upstreams: []netip.AddrPort{netip.AddrPortFrom(networktest.ResolverV4, 53)},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return host.Dial(ctx, network, address)
		},
	}, nil)
	if errors.Is(err, sandbox.ErrUnsupported) {
		t.Logf("without networks: %v", err)
		i.node = nil
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the driver has closed it, and all sandboxes have ended
		if err := host.Do(func() error { return node.Remove(dir) }); err != nil {
			t.Errorf("remove the network: %v", err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is left", dir)
		}
	})
	return i.node
}

func (i *internet) seen() *sandboxtest.Internet {
	return &sandboxtest.Internet{One: i.one, Other: i.other, Known: i.node.Known}
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
