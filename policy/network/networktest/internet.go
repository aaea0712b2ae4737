package networktest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
)

// Addresses that every Internet has.
var (
	ResolverV4 = netip.MustParseAddr("198.51.100.53")
	ResolverV6 = netip.MustParseAddr("2001:db8:53::53")
	HostileV4  = netip.MustParseAddr("198.51.100.66")
	MetadataV4 = netip.MustParseAddr("169.254.169.254")
	MetadataV6 = netip.MustParseAddr("fd00:ec2::254")
)

// Internet is the namespace in which all servers are.
type Internet struct {
	*Namespace
	// DNS is the resolver at ResolverV4 and ResolverV6, port 53, UDP and TCP.
	DNS *DNS
	// CA signs the certificates of all sites.
	CA *CA

	t       testing.TB
	mu      sync.Mutex
	sites   int // addresses handed out, of both families
	links   int
	serving map[netip.Addr]*tenants
}

// New makes an internet without sites. It skips the test without root.
func New(t testing.TB) *Internet {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	i := &Internet{Namespace: NewNamespace(t), t: t, CA: newCA(t), serving: map[netip.Addr]*tenants{}}
	for _, a := range []netip.Addr{ResolverV4, ResolverV6} {
		i.AddAddr(a)
	}
	i.DNS = startDNS(t, i.Namespace, ResolverV4, ResolverV6)
	return i
}

// AddAddr gives the internet one more address.
func (i *Internet) AddAddr(a netip.Addr) {
	i.t.Helper()
	if err := addAddr(i.Namespace, "lo", netip.PrefixFrom(a, a.BitLen())); err != nil {
		i.t.Fatalf("give the internet %s: %v", a, err)
	}
}

// Host makes a namespace that is joined to the internet.
func (i *Internet) Host() *Namespace {
	i.t.Helper()
	n := NewNamespace(i.t)
	i.Join(n, "eth0")
	return n
}

// Link is what Join gives a namespace: its own addresses and those of the internet's end, its next hops.
type Link struct {
	V4, V6         netip.Addr
	PeerV4, PeerV6 netip.Addr
}

// Join connects a namespace to the internet with a link of the given name and default routes over it.
func (i *Internet) Join(n *Namespace, name string) Link {
	i.t.Helper()
	i.mu.Lock()
	k := i.links
	i.links++
	i.mu.Unlock()
	if k > 126 {
		i.t.Fatal("the test internet has room for 127 hosts")
	}
	l := Link{
		V4: netip.AddrFrom4([4]byte{192, 0, 2, byte(2*k + 1)}), PeerV4: netip.AddrFrom4([4]byte{192, 0, 2, byte(2 * k)}),
		V6:     netip.MustParseAddr(fmt.Sprintf("2001:db8:ffff:%x::2", k)),
		PeerV6: netip.MustParseAddr(fmt.Sprintf("2001:db8:ffff:%x::1", k)),
	}
	if err := i.join(n, name, fmt.Sprintf("host%d", k), l); err != nil {
		i.t.Fatalf("join a host to the test internet: %v", err)
	}
	return l
}

func (i *Internet) join(n *Namespace, name, peer string, l Link) error {
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: peer}, PeerName: name, PeerNamespace: netlink.NsFd(n.FD()),
	}
	if err := i.nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("veth: %w", err)
	}
	for _, end := range []struct {
		n      *Namespace
		name   string
		v4, v6 netip.Addr
	}{{i.Namespace, peer, l.PeerV4, l.PeerV6}, {n, name, l.V4, l.V6}} {
		if err := addAddr(end.n, end.name, netip.PrefixFrom(end.v4, 31)); err != nil {
			return err
		}
		if err := addAddr(end.n, end.name, netip.PrefixFrom(end.v6, 64)); err != nil {
			return err
		}
		link, err := end.n.nl.LinkByName(end.name)
		if err != nil {
			return err
		}
		if err := end.n.nl.LinkSetUp(link); err != nil {
			return err
		}
	}
	link, err := n.nl.LinkByName(name)
	if err != nil {
		return err
	}
	for _, gw := range []netip.Addr{l.PeerV4, l.PeerV6} {
		if err := n.nl.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gw.AsSlice()}); err != nil {
			return fmt.Errorf("default route by %s: %w", gw, err)
		}
	}
	return nil
}

// addAddr adds an address that is usable at once: duplicate address detection is off.
func addAddr(n *Namespace, link string, p netip.Prefix) error {
	l, err := n.nl.LinkByName(link)
	if err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if p.Addr().Is6() {
		a.Flags = noDAD
	}
	if err := n.nl.AddrAdd(l, a); err != nil {
		return fmt.Errorf("address %s on %s: %w", p, link, err)
	}
	return nil
}

// noDAD is IFA_F_NODAD.
const noDAD = 0x02

// nextAddr hands out an address for a site.
func (i *Internet) nextAddr(v6 bool) netip.Addr {
	i.mu.Lock()
	i.sites++
	k := i.sites
	i.mu.Unlock()
	var a netip.Addr
	switch {
	case v6:
		a = netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%x", k))
	case k < 250:
		a = netip.AddrFrom4([4]byte{203, 0, 113, byte(k)})
	default:
		i.t.Fatal("the test internet has room for 249 site addresses; share them (Addrs)")
	}
	i.AddAddr(a)
	return a
}
