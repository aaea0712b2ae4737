package datapath_test

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/opendsec/dsec/internal/linux"
)

// masquerade hides what a namespace forwards behind its own address.
func masquerade(s *linux.NetSpace) error {
	c, err := nftables.New(nftables.WithNetNSFd(int(s.File().Fd())))
	if err != nil {
		return err
	}
	t := c.AddTable(&nftables.Table{Name: "inside", Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{Name: "post", Table: t, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{&expr.Masq{}}})
	return c.Flush()
}

func hostUplink(w *world) (index int, err error) {
	err = w.host.Do(func() error {
		index, err = linux.LinkIndex(w.linkCfg.Uplink.Name)
		return err
	})
	return index, err
}

func addRoute(s *linux.NetSpace, index int, to netip.Prefix, via netip.Addr) error {
	return netlink(s, linux.AddRoute(linux.RouteTo{To: to, Index: index, Via: via}))
}
