package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

const (
	slotIndex   = 1000 // interface index of slot 0's host end
	uplinkIndex = 2
	uplinkName  = "up"
	slotPrefix  = "s"

	// ProxyMark is the mark of packets that are delivered to a socket of the router, whatever their destination.
	ProxyMark = 0xd5ec01
	// PassMark is the mark of packets that the datapath let through: the router forwards and takes nothing from sandboxes
	// without it, so that a link without a datapath leads nowhere.
	PassMark   = 0xd5ec02
	proxyTable = 1001
)

// Config of a router.
type Config struct {
	Dir    string // where the namespace's file lies; made if missing
	Plan   Plan
	MTU    int     // of sandboxes' links; 0: 1500
	Uplink *Uplink // nil: the router reaches nothing
}

// Router is the namespace in which all sandboxes' links end.
type Router struct {
	cfg   Config
	space *linux.NetSpace

	mu    sync.Mutex // guards route
	route *linux.Route
}

// Open finds the router of a state directory, or makes it. What is missing is added: an Open that was killed half way
// is completed by the next.
func Open(cfg Config) (*Router, error) {
	if err := cfg.Plan.Check(); err != nil {
		return nil, err
	}
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	if cfg.MTU < 1280 || cfg.MTU > 65535 {
		return nil, fmt.Errorf("MTU %d: give 1280 to 65535: %w", cfg.MTU, sandbox.ErrInvalid)
	}
	if cfg.Uplink != nil {
		if err := cfg.Uplink.check(); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	r := &Router{cfg: cfg}
	fresh, err := r.open()
	if err != nil {
		return nil, err
	}
	if err := r.setUp(); err != nil {
		err = fmt.Errorf("set up the router's namespace: %w", err)
		if fresh {
			return nil, errors.Join(err, r.Destroy())
		}
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Find opens the router of a state directory as it is, to be looked at or destroyed: nothing is added to it. Error:
// os.ErrNotExist.
func Find(cfg Config) (*Router, error) {
	if _, err := os.Stat(cfg.file()); err != nil {
		return nil, err
	}
	r := &Router{cfg: cfg}
	if _, err := r.open(); err != nil {
		return nil, err
	}
	return r, nil
}

func (c Config) file() string { return filepath.Join(c.Dir, "router") }

func (r *Router) open() (fresh bool, err error) {
	r.space, err = linux.OpenPinnedNetSpace(r.cfg.file())
	if errors.Is(err, os.ErrNotExist) {
		if err := linux.UnpinNetSpace(r.cfg.file()); err != nil {
			return false, err
		}
		if r.space, err = linux.NewNetSpace(); err != nil {
			return false, err
		}
		fresh = true
		if err = linux.PinNetSpace(r.space, r.cfg.file()); err != nil {
			_ = r.space.Close()
			return false, err
		}
	}
	if err != nil {
		return false, err
	}
	err = r.space.Do(func() (err error) {
		r.route, err = linux.OpenRoute()
		return err
	})
	if err != nil {
		_ = r.space.Close()
	}
	return fresh, err
}

func (r *Router) setUp() error {
	if err := r.space.Do(sysctls); err != nil {
		return err
	}
	p := r.cfg.Plan
	const lo = 1
	reqs := []linux.Request{
		linux.UpLink(lo),
		linux.AddAddress(lo, netip.PrefixFrom(p.Gateway4(), 32)),
		linux.AddAddress(lo, netip.PrefixFrom(p.Gateway6(), 128)),
		linux.TakeAddress(lo, p.Gateway6()),
	}
	for _, all := range []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")} {
		reqs = append(reqs, linux.AddRoute(linux.RouteTo{To: all, Index: lo, Table: proxyTable, Deliver: true}),
			linux.AddMarkRule(ProxyMark, proxyTable, 100, all.Addr().Is6()))
	}
	if err := r.apply(reqs...); err != nil {
		return err
	}
	if err := r.cfg.Uplink.setUp(r); err != nil {
		return fmt.Errorf("uplink: %w", err)
	}
	return nil
}

// sysctls of the router: it forwards, announces nothing, learns nothing from others.
func sysctls() error {
	for _, s := range []string{
		"ipv4/ip_forward=1",
		"ipv4/conf/all/send_redirects=0", "ipv4/conf/default/send_redirects=0",
		"ipv4/conf/all/accept_redirects=0", "ipv4/conf/default/accept_redirects=0",
		"ipv4/conf/all/rp_filter=0", "ipv4/conf/default/rp_filter=1", // what a sandbox sends has its own address
		"ipv4/conf/all/arp_ignore=1", "ipv4/conf/all/arp_announce=2",
		// The proxy ends most connections first; a sandbox that has the same port again within a minute would not get through.
		"ipv4/tcp_max_tw_buckets=0",
		"ipv6/conf/all/forwarding=1", "ipv6/conf/default/forwarding=1",
		"ipv6/conf/default/accept_ra=0", "ipv6/conf/default/accept_dad=0", "ipv6/conf/default/dad_transmits=0",
		"ipv6/conf/default/addr_gen_mode=1", "ipv6/conf/default/router_solicitations=0",
	} {
		name, value, _ := strings.Cut(s, "=")
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

func (r *Router) apply(reqs ...linux.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.route.Apply(reqs...)
}

// Apply configures the router's namespace.
func (r *Router) Apply(reqs ...linux.Request) error { return r.apply(reqs...) }

// Plan is the addressing.
func (r *Router) Plan() Plan { return r.cfg.Plan }

// MTU is that of all sandboxes' links.
func (r *Router) MTU() int { return r.cfg.MTU }

// UplinkIndex is the uplink's interface index, 0 without one.
func (r *Router) UplinkIndex() int {
	if r.cfg.Uplink == nil {
		return 0
	}
	return uplinkIndex
}

// Uplinks are the networks between the router and the host.
func (r *Router) Uplinks() []netip.Prefix {
	u := r.cfg.Uplink
	if u == nil {
		return nil
	}
	return []netip.Prefix{u.Router4.Masked(), u.Router6.Masked()}
}

// File is the router's network namespace; it belongs to the router.
func (r *Router) File() *os.File { return r.space.File() }

// Do runs f on a thread that is in the router's namespace, one at a time. Sockets that f opens belong to the router
// for good; goroutines that it starts run elsewhere.
func (r *Router) Do(f func() error) error { return r.space.Do(f) }

// Within runs f on that thread while it is in another namespace, of which the caller keeps the descriptor.
func (r *Router) Within(netns *os.File, f func() error) error { return r.space.Within(netns, f) }

// Listen listens for TCP in the router. transparent: for connections to whatever address that the datapath hands over;
// their local address is the one that was dialled.
func (r *Router) Listen(address netip.AddrPort, transparent bool) (net.Listener, error) {
	lc := net.ListenConfig{}
	if transparent {
		lc.Control = func(_, _ string, c syscall.RawConn) error { return linux.SetTransparent(c, address.Addr().Is6()) }
	}
	var l net.Listener
	err := r.Do(func() (err error) {
		l, err = lc.Listen(context.Background(), "tcp", address.String())
		return err
	})
	return l, err
}

// ListenPacket opens a UDP socket in the router.
func (r *Router) ListenPacket(address netip.AddrPort) (net.PacketConn, error) {
	var c net.PacketConn
	err := r.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(address))
		return err
	})
	return c, err
}

// Dial connects from the router by TCP. To a sandbox's address it comes from the gateway's, as the node's port
// proxy does.
func (r *Router) Dial(ctx context.Context, address netip.AddrPort) (net.Conn, error) {
	var socket *os.File
	err := r.Do(func() (err error) {
		socket, err = linux.TCPSocket(address.Addr().Is6())
		return err
	})
	if err != nil {
		return nil, err
	}
	// The socket belongs to the router already: the connection is waited for here, not on the router's thread.
	return linux.ConnectTCP(ctx, socket, address)
}

// Close lets go of the router and leaves it and all links in place.
func (r *Router) Close() error {
	return errors.Join(r.route.Close(), r.space.Close())
}

// Destroy removes the router with all links and the uplink, and closes it.
func (r *Router) Destroy() error {
	err := r.removeAll()
	if uerr := r.cfg.Uplink.tearDown(r); err == nil {
		err = uerr
	}
	if rerr := os.Remove(r.cfg.hostFile()); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	return errors.Join(err, r.Close(), linux.UnpinNetSpace(r.cfg.file()))
}
