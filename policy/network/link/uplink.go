package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/google/nftables"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// Uplink is the pair between the router and the host's namespace.
type Uplink struct {
	Name string // of the host's end, at most 15 bytes
	// Addresses with the length of the network that both ends lie in.
	Router4, Host4 netip.Prefix
	Router6, Host6 netip.Prefix
	// Translate makes the host forward and hide the router behind its own address, by a table of its own. Without it the
	// operator's own routing does. IPv6 is forwarded only where the host does so already: switching it on would
	// change how the host gets its own address.
	Translate bool
	// Host is the namespace of the host's end; nil: this process's.
	Host *os.File
}

// DefaultUplink uses the last addresses of the ranges that DefaultPlan's pools lie beside.
func DefaultUplink() *Uplink {
	return &Uplink{
		Name:    "dsec-up",
		Router4: netip.MustParsePrefix("100.127.127.254/30"), Host4: netip.MustParsePrefix("100.127.127.253/30"),
		Router6: netip.MustParsePrefix("fdd5:ec00:0:1::2/64"), Host6: netip.MustParsePrefix("fdd5:ec00:0:1::1/64"),
		Translate: true,
	}
}

func (u *Uplink) check() error {
	if u.Name == "" || len(u.Name) > 15 {
		return fmt.Errorf("uplink name %q: give 1 to 15 bytes: %w", u.Name, sandbox.ErrInvalid)
	}
	for _, pair := range [][2]netip.Prefix{{u.Router4, u.Host4}, {u.Router6, u.Host6}} {
		if !pair[0].IsValid() || pair[0].Masked() != pair[1].Masked() || pair[0].Addr() == pair[1].Addr() {
			return fmt.Errorf("uplink addresses %s and %s: give two of one network: %w", pair[0], pair[1], sandbox.ErrInvalid)
		}
	}
	return nil
}

var (
	uplinkMAC = [6]byte{0x02, 0xd5, 0xec, 0xff, 0xfe, 0x02}
	hostMAC   = [6]byte{0x02, 0xd5, 0xec, 0xff, 0xfe, 0x01}
)

// atHost runs f with a routing socket of the host's namespace.
func (u *Uplink) atHost(f func(*linux.Route) error) error {
	open := func() error {
		route, err := linux.OpenRoute()
		if err != nil {
			return err
		}
		defer route.Close()
		return f(route)
	}
	if u.Host == nil {
		return open()
	}
	dup, err := linux.Duplicate(u.Host)
	if err != nil {
		return err
	}
	space, err := linux.EnterNetSpace(dup)
	if err != nil {
		dup.Close()
		return err
	}
	defer space.Close()
	return space.Do(open)
}

func (u *Uplink) setUp(r *Router) error {
	if u == nil {
		return firewall(r.File())
	}
	r.mu.Lock()
	links, err := r.route.Links()
	r.mu.Unlock()
	if err != nil {
		return err
	}
	if links[uplinkIndex] != uplinkName {
		// Before the uplink, so that none is ever without its owner.
		host, err := u.host()
		if err != nil {
			return err
		}
		if err := os.WriteFile(r.cfg.hostFile(), []byte(host+"\n"), 0o600); err != nil {
			return err
		}
		// The pair is made in the host's namespace first, where its name may be taken, then in the router.
		err = u.atHost(func(route *linux.Route) error {
			return route.Apply(linux.AddVeth(linux.VethEnd{Name: u.Name, MAC: hostMAC},
				linux.VethEnd{Name: uplinkName, Index: uplinkIndex, MAC: uplinkMAC, Space: r.File()}, r.cfg.MTU))
		})
		if errors.Is(err, sandbox.ErrAlreadyExists) || errors.Is(err, os.ErrExist) {
			return fmt.Errorf("the host has an interface %s already, of another node's perhaps, and one host has one network for sandboxes: %w", u.Name, sandbox.ErrAlreadyExists)
		}
		if err != nil {
			return err
		}
	}
	err = r.apply(
		linux.QuietLink(uplinkIndex), linux.UpLink(uplinkIndex),
		linux.AddAddress(uplinkIndex, u.Router4),
		linux.AddAddress(uplinkIndex, u.Router6),
		linux.TakeAddress(uplinkIndex, u.Router6.Addr()),
		linux.AddNeighbour(uplinkIndex, u.Host4.Addr(), hostMAC),
		linux.AddNeighbour(uplinkIndex, u.Host6.Addr(), hostMAC),
		linux.AddRoute(linux.RouteTo{To: netip.MustParsePrefix("0.0.0.0/0"), Index: uplinkIndex, Via: u.Host4.Addr()}),
		linux.AddRoute(linux.RouteTo{To: netip.MustParsePrefix("::/0"), Index: uplinkIndex, Via: u.Host6.Addr()}),
	)
	if err != nil {
		return err
	}
	err = u.atHost(func(route *linux.Route) error {
		index, err := linux.LinkIndex(u.Name)
		if err != nil {
			return err
		}
		err = route.Apply(
			linux.QuietLink(index), linux.UpLink(index),
			linux.AddAddress(index, u.Host4),
			linux.AddAddress(index, u.Host6),
			linux.AddNeighbour(index, u.Router4.Addr(), uplinkMAC),
			linux.AddNeighbour(index, u.Router6.Addr(), uplinkMAC),
		)
		if err != nil || !u.Translate {
			return err
		}
		return forward()
	})
	if err != nil {
		return fmt.Errorf("at the host: %w", err)
	}
	if err := r.apply(linux.SettleLink(uplinkIndex)); err != nil {
		return err
	}
	if err := u.guardHost(); err != nil {
		return fmt.Errorf("at the host: %w", err)
	}
	return firewall(r.File())
}

// forward makes the host forward IPv4. Where it does so already, it may be one that would not let itself be changed.
func forward() error {
	const path = "/proc/sys/net/ipv4/ip_forward"
	if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) == "1" {
		return nil
	}
	return os.WriteFile(path, []byte("1"), 0)
}

// tearDown removes the pair by its end in the router: what has the uplink's name at the host may be another router's.
func (u *Uplink) tearDown(r *Router) error {
	if u == nil {
		return nil
	}
	r.mu.Lock()
	links, err := r.route.Links()
	r.mu.Unlock()
	if err != nil || links[uplinkIndex] != uplinkName {
		return err
	}
	away, aerr := u.elsewhere(r.cfg)
	err = errors.Join(aerr, r.apply(linux.DeleteLink(uplinkIndex)))
	if away || aerr != nil { // what has the table's name here is another router's
		return err
	}
	c, cerr := connect(u.Host)
	if cerr != nil {
		return errors.Join(err, cerr)
	}
	defer func() { _ = c.CloseLasting() }()
	c.DelTable(u.table())
	if ferr := c.Flush(); ferr != nil && !errors.Is(ferr, os.ErrNotExist) {
		err = errors.Join(err, ferr)
	}
	return err
}

func (u *Uplink) table() *nftables.Table {
	return &nftables.Table{Name: "dsec_" + u.Name, Family: nftables.TableFamilyINet}
}
