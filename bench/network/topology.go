package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/link"
)

const (
	site    = "203.0.113.10"
	address = site + ":8080"
	port    = 8080
)

// topology is a router with its host and an internet of one server.
type topology struct {
	dir            string
	host, internet *linux.NetSpace
	router         *link.Router
	dp             datapath.Datapath // nil: the router lets everything through
	listener       net.Listener
	wg             sync.WaitGroup
	boxes          []*linux.NetSpace
}

func apply(s *linux.NetSpace, reqs ...linux.Request) error {
	return s.Do(func() error {
		r, err := linux.OpenRoute()
		if err != nil {
			return err
		}
		defer r.Close()
		return r.Apply(reqs...)
	})
}

func build(enforced bool) (t *topology, err error) {
	t = &topology{}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.dir, err = os.MkdirTemp("", "bench-network-"); err != nil {
		return t, err
	}
	if t.host, err = linux.NewNetSpace(); err != nil {
		return t, err
	}
	if t.internet, err = linux.NewNetSpace(); err != nil {
		return t, err
	}
	near, far := netip.MustParsePrefix("198.51.100.1/30"), netip.MustParsePrefix("198.51.100.2/30")
	const wan = 5
	err = errors.Join(
		apply(t.host, linux.AddVeth(linux.VethEnd{Name: "wan", Index: wan}, linux.VethEnd{Name: "wan", Index: wan, Space: t.internet.File()}, 0),
			linux.UpLink(1), linux.UpLink(wan), linux.AddAddress(wan, near)),
		apply(t.internet, linux.UpLink(1), linux.UpLink(wan), linux.AddAddress(wan, far), linux.AddAddress(1, netip.MustParsePrefix(site+"/32"))),
		apply(t.host, linux.SettleLink(wan), linux.AddRoute(linux.RouteTo{To: netip.MustParsePrefix("0.0.0.0/0"), Index: wan, Via: far.Addr()})),
	)
	if err != nil {
		return t, err
	}
	up := link.DefaultUplink()
	up.Host = t.host.File()
	if t.router, err = link.Open(link.Config{Dir: filepath.Join(t.dir, "router"), Plan: link.DefaultPlan(), Uplink: up}); err != nil {
		return t, err
	}
	if enforced {
		t.dp, err = datapath.OpenEBPF(datapath.Config{Dir: filepath.Join(t.dir, "datapath"), Router: t.router})
	} else {
		err = letThrough(t.router.File())
	}
	if err != nil {
		return t, err
	}
	return t, t.serve()
}

// letThrough has the router forward without a datapath.
func letThrough(ns *os.File) error {
	c, err := nftables.New(nftables.WithNetNSFd(int(ns.Fd())))
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: "router", Family: nftables.TableFamilyINet}
	c.InsertRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Name: "forward", Table: table}, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}})
	return c.Flush()
}

// serve answers each byte by itself, and swallows the rest of what comes at once.
func (t *topology) serve() error {
	err := t.internet.Do(func() (err error) {
		t.listener, err = net.Listen("tcp", fmt.Sprintf("%s:%d", site, port))
		return err
	})
	if err != nil {
		return err
	}
	t.wg.Go(func() {
		for {
			c, err := t.listener.Accept()
			if err != nil {
				return
			}
			t.wg.Go(func() {
				defer c.Close()
				b := make([]byte, 256<<10)
				for {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					if n == 1 {
						if _, err := c.Write(b[:1]); err != nil {
							return
						}
					}
				}
			})
		}
	})
	return nil
}

// sandbox makes a link, under enforcement if there is a datapath.
func (t *topology) sandbox(slot int) (*linux.NetSpace, error) {
	s, err := linux.NewNetSpace()
	if err != nil {
		return nil, err
	}
	t.boxes = append(t.boxes, s)
	if err := t.router.Make(slot, s.File()); err != nil {
		return nil, err
	}
	if t.dp == nil {
		return s, nil
	}
	return s, t.dp.Attach(slot, datapath.Attachment{Index: link.Index(slot)})
}

func (t *topology) close() error {
	var errs []error
	if t.listener != nil {
		errs = append(errs, t.listener.Close())
	}
	if t.dp != nil {
		errs = append(errs, t.dp.Destroy())
	}
	if t.router != nil {
		errs = append(errs, t.router.Destroy())
	}
	t.wg.Wait()
	for _, s := range append(t.boxes, t.host, t.internet) {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(t.dir))...)
}

// rulesFor is a policy that allows the server, and n-1 other prefixes.
func rulesFor(n, salt int) []network.Entry {
	out := []network.Entry{{Prefix: netip.MustParsePrefix(site + "/32"), Opening: network.Opening{Protocol: network.TCP, From: port, To: port, Verdict: network.VerdictAllow}}}
	for i := 1; i < n; i++ {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(20 + i>>16), byte(i >> 8), byte(i), 0}), 24)
		out = append(out, network.Entry{Prefix: p, Opening: network.Opening{Protocol: network.TCP, From: uint16(1 + salt), To: 60000, Verdict: network.VerdictAllow}})
	}
	return out
}

func dial(s *linux.NetSpace) (c net.Conn, err error) {
	err = s.Do(func() error {
		c, err = net.DialTimeout("tcp", address, 10*time.Second)
		return err
	})
	return c, err
}

// ping sends a byte and waits for it.
func ping(c net.Conn) error {
	var b [1]byte
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write(b[:]); err != nil {
		return err
	}
	_, err := io.ReadFull(c, b[:])
	return err
}
