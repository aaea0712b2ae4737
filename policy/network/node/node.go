package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

// proxyPort is where the proxy listens at the gateway's addresses.
const proxyPort = 15001

// Config of a node's network. Zero values take the defaults named.
type Config struct {
	Dir       string           // for what outlives this process; made if missing
	Plan      link.Plan        // addresses (link.DefaultPlan)
	Uplink    *link.Uplink     // (link.DefaultUplink)
	Upstreams []netip.AddrPort // resolvers to ask (those of /etc/resolv.conf)
	Catalog   *network.Catalog // services (network.Builtin)
	// Dial reaches the internet, for the resolver and the proxy; nil dials from the process's namespace.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Proxy is the socket of the process that checks names (netproxy.Server); empty: this one does, and connections that are
	// checked end with it. With it, what is checked is dialled by that process.
	Proxy string
	// Addresses are the node's own: no policy opens them (those of its interfaces).
	Addresses []netip.Prefix
	// Enforcer is datapath.EBPF or datapath.Nftables (that of links that are there, else the best that the kernel takes).
	Enforcer string
	Log      *slog.Logger
}

// Network is the network of a node. Methods may be called by many at once; calls about one slot must not overlap.
type Network struct {
	cfg    Config
	log    *slog.Logger
	router *link.Router
	dp     datapath.Datapath
	book   *dns.Book
	dns    *dns.Server
	check  check
	events func(Event)

	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.RWMutex
	slots map[int]*place
	keys  map[string]*place
	jobs  map[string]*job // private networks, by name
}

// place is a bound slot.
type place struct {
	slot       int
	key        string
	program    *network.Program
	generation uint64
	job, name  string // private network, and what its members call it
}

// Open finds the network of an earlier process, or makes it. events hears what happens to sandboxes' traffic; it must
// not block. Error: sandbox.ErrUnsupported where the kernel offers no way to enforce a policy.
func Open(cfg Config, events func(Event)) (_ *Network, err error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	n := &Network{cfg: cfg, log: cfg.Log, events: events, book: dns.NewBook(nil), slots: map[int]*place{}, keys: map[string]*place{}, jobs: map[string]*job{}}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	defer func() {
		if err != nil {
			_ = n.Close()
		}
	}()
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if n.router, err = link.Open(link.Config{Dir: cfg.Dir, Plan: cfg.Plan, Uplink: cfg.Uplink}); err != nil {
		return nil, err
	}
	linked, err := n.router.Slots()
	if err != nil {
		return nil, err
	}
	n.dp, err = openDatapath(cfg.Dir, cfg.Enforcer, datapath.Config{
		Dir: filepath.Join(cfg.Dir, "datapath"), Router: n.router, ProxyPort: proxyPort, Forbidden: cfg.Addresses, Log: cfg.Log,
	}, len(linked) > 0)
	if err != nil {
		return nil, err
	}
	if err := n.openCheck(ctx); err != nil {
		return nil, err
	}
	if n.dns, err = dns.New(dns.Config{
		Identify: n.identify, Opener: teller{n, n.book.Opener(opener{n})}, Local: n.members, Events: n.named, Upstreams: cfg.Upstreams, Log: cfg.Log,
		Dial: func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			return cfg.Dial(ctx, network, to.String())
		},
	}); err != nil {
		return nil, err
	}
	return n, n.serve(ctx)
}

func (c *Config) defaults() error {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Plan == (link.Plan{}) {
		c.Plan = link.DefaultPlan()
	}
	if c.Uplink == nil {
		c.Uplink = link.DefaultUplink()
	}
	if c.Catalog == nil {
		c.Catalog = network.Builtin()
	}
	if c.Dial == nil {
		d := &net.Dialer{Timeout: 10 * time.Second}
		c.Dial = d.DialContext
	}
	var err error
	if c.Addresses == nil {
		if c.Addresses, err = ownAddresses(); err != nil {
			return err
		}
	}
	if c.Upstreams == nil {
		c.Upstreams, err = resolvers("/etc/resolv.conf")
	}
	return err
}

// serve listens at the gateway's addresses and answers until ctx ends.
func (n *Network) serve(ctx context.Context) error {
	var packets []net.PacketConn
	var streams []net.Listener
	for _, gw := range []netip.Addr{n.cfg.Plan.Gateway4(), n.cfg.Plan.Gateway6()} {
		pc, err := n.router.ListenPacket(netip.AddrPortFrom(gw, datapath.DNSPort))
		if err != nil {
			return err
		}
		packets = append(packets, pc)
		ln, err := n.router.Listen(netip.AddrPortFrom(gw, datapath.DNSPort), false)
		if err != nil {
			return err
		}
		streams = append(streams, ln)
	}
	n.wg.Go(func() {
		if err := n.dns.Serve(ctx, packets, streams); err != nil && ctx.Err() == nil {
			n.log.Error("the resolver has ended", "err", err)
		}
	})
	n.wg.Go(n.follow)
	return nil
}

// Close ends this process's part. Enforcement goes on in the kernel, and the next Open takes over.
func (n *Network) Close() error {
	n.cancel()
	var errs []error
	if n.check != nil {
		errs = append(errs, n.check.Close())
	}
	if n.dp != nil {
		errs = append(errs, n.dp.Close())
	}
	n.wg.Wait()
	if n.router != nil {
		errs = append(errs, n.router.Close())
	}
	return errors.Join(errs...)
}

// Destroy takes the whole network away. No sandbox may need it any more.
func (n *Network) Destroy() error {
	n.cancel()
	err := errors.Join(n.check.Destroy(), n.dp.Destroy())
	n.wg.Wait()
	return errors.Join(err, n.router.Destroy())
}

// Remove takes away what an earlier process left in dir, without serving anything.
func Remove(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	cfg := link.Config{Dir: dir, Plan: link.DefaultPlan(), Uplink: link.DefaultUplink()}
	r, err := link.Find(cfg)
	if errors.Is(err, os.ErrNotExist) { // what is left beside it is removed all the same
		cfg.Uplink = nil
		r, err = link.Open(cfg)
	}
	if err != nil {
		return err
	}
	dp, err := openDatapath(dir, "", datapath.Config{Dir: filepath.Join(dir, "datapath"), Router: r}, true)
	if err == nil {
		err = dp.Destroy()
	}
	return errors.Join(err, r.Destroy(), os.RemoveAll(dir))
}

// Kind says what enforces: datapath.EBPF or datapath.Nftables.
func (n *Network) Kind() string { return n.dp.Kind() }

// Lacks says what this enforcement does without.
func (n *Network) Lacks() []string { return n.dp.Capabilities().Lacks() }

// Resolvers are what a sandbox's resolv.conf names.
func (n *Network) Resolvers() []netip.Addr {
	return []netip.Addr{n.cfg.Plan.Gateway4(), n.cfg.Plan.Gateway6()}
}

// Known are the sandboxes that have a link under a program, in no order.
func (n *Network) Known() []string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return slices.Collect(maps.Keys(n.keys))
}

// Compiler makes programs for this node.
func (n *Network) Compiler() network.Compiler {
	return network.Compiler{
		Catalog: n.cfg.Catalog,
		Node:    slices.Concat([]netip.Prefix{n.cfg.Plan.Pool4, n.cfg.Plan.Pool6}, n.router.Uplinks(), n.cfg.Addresses),
	}
}

// Attach gives a network namespace the link of a slot, on which everything is denied. group is its v2 control group.
func (n *Network) Attach(slot int, netns, group *os.File) error {
	return n.attach(slot, func() error { return n.router.Make(slot, netns) }, datapath.Attachment{Group: group, Space: netns})
}

// AttachTap makes the link of a slot for a machine, on which everything is denied: the queue of frames is its monitor's,
// the link's end (End) the machine's own to set up. The link ends with the last that has the queue open.
func (n *Network) AttachTap(slot int) (queue *os.File, err error) {
	err = n.attach(slot, func() (err error) {
		queue, err = n.router.MakeTap(slot)
		return err
	}, datapath.Attachment{})
	if err != nil && queue != nil {
		err = errors.Join(err, queue.Close())
		queue = nil
	}
	return queue, err
}

// End is what a machine has to make of its end of a slot's link.
func (n *Network) End(slot int) linux.LinkEnd { return n.router.End(slot) }

func (n *Network) attach(slot int, make func() error, a datapath.Attachment) error {
	if slot < 0 || slot >= link.Slots {
		return fmt.Errorf("network of slot %d: %w: a node has %d", slot, sandbox.ErrExhausted, link.Slots)
	}
	// Under enforcement before there is anything to enforce.
	if err := n.dp.Clear(slot); err != nil {
		return fmt.Errorf("clear slot %d: %w", slot, err)
	}
	err := make()
	if errors.Is(err, sandbox.ErrAlreadyExists) { // that of the slot's last sandbox, which is still going
		if err = n.router.Remove(slot); err == nil {
			err = make()
		}
	}
	if err != nil {
		return fmt.Errorf("make link of slot %d: %w", slot, err)
	}
	a.Index = link.Index(slot)
	if err := n.dp.Attach(slot, a); err != nil {
		return errors.Join(fmt.Errorf("attach slot %d: %w", slot, err), n.router.Remove(slot))
	}
	return nil
}

// Set puts the sandbox called key, which has the slot, under a program. The generation must not be lower than before
// (sandbox.ErrConflict). When it returns the program is in force, and connections that it forbids are cut.
func (n *Network) Set(slot int, key string, generation uint64, prog *network.Program) error {
	n.mu.Lock()
	p, err := n.placeOf(slot, key)
	if err != nil {
		n.mu.Unlock()
		return err
	}
	if generation < p.generation {
		n.mu.Unlock()
		return fmt.Errorf("network of %s: %w: generation %d is in force, %d is older", p.key, sandbox.ErrConflict, p.generation, generation)
	}
	before := *p
	p.program, p.generation = prog, generation
	n.mu.Unlock()
	// What the proxy cuts is cut while the datapath still lets through that it is: else who waits for bytes waits for ever.
	err = n.check.Set(n.placeAt(slot, key, prog))
	if err == nil {
		err = n.dp.Limit(slot, prog.Limits)
	}
	if err == nil {
		err = n.carry(slot, key, generation, prog)
	}
	if err == nil {
		err = n.dp.Set(slot, generation, prog.Static)
	}
	if err != nil {
		n.mu.Lock()
		p.program, p.generation = before.program, before.generation
		n.mu.Unlock()
		if before.program == nil {
			n.check.Forget(n.addresses(slot))
		} else if cerr := n.check.Set(n.placeAt(slot, key, before.program)); cerr != nil {
			err = errors.Join(err, cerr)
		}
		return fmt.Errorf("network of %s: %w", p.key, err)
	}
	n.check.Recheck(p.key) // of those that were being judged by the program before
	return nil
}

// placeOf is the place of a sandbox, which is made the first time: before, its questions are nobody's. n.mu is held.
func (n *Network) placeOf(slot int, key string) (*place, error) {
	p := n.slots[slot]
	if p == nil {
		p = &place{slot: slot, key: key}
		n.slots[slot], n.keys[key] = p, p
	}
	if p.key != key {
		return nil, fmt.Errorf("network of %s: %w: slot %d is that of %s", key, sandbox.ErrConflict, slot, p.key)
	}
	return p, nil
}

// Detach closes a slot and forgets its sandbox. The link goes with the sandbox's namespace.
func (n *Network) Detach(slot int) error {
	n.mu.Lock()
	p := n.slots[slot]
	delete(n.slots, slot)
	if p != nil {
		delete(n.keys, p.key)
		n.leave(p)
	}
	n.mu.Unlock()
	n.check.Forget(n.addresses(slot)) // who had it before this process, too
	if p != nil {
		n.dns.Forget(p.key)
		n.book.Forget(p.key)
	}
	return n.dp.Clear(slot)
}

// Sweep detaches every slot of a range that keep does not want: those of sandboxes that ended while nobody served.
func (n *Network) Sweep(r link.Range, keep func(slot int) bool) error {
	links, err := n.router.Slots()
	if err != nil {
		return err
	}
	var errs []error
	var gone []int
	for _, slot := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(links, n.dp.Slots())))) {
		if r.Has(slot) && !keep(slot) {
			errs = append(errs, n.Detach(slot))
			gone = append(gone, slot)
		}
	}
	// Together: one at a time the kernel takes tens of milliseconds for each.
	return errors.Join(append(errs, n.router.Remove(gone...))...)
}
