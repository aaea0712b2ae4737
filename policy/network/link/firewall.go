package link

import (
	"fmt"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

// firewall is the router's own table: what the datapath marked leaves by the uplink with its address, or reaches the
// router itself; answers come back. From sandbox to sandbox passes what the datapath marked: members of one private
// network. Nothing else does.
func firewall(router *os.File) error {
	c, err := connect(router)
	if err != nil {
		return err
	}
	defer func() { _ = c.CloseLasting() }()
	t := renew(c, &nftables.Table{Name: "router", Family: nftables.TableFamilyINet})
	drop := nftables.ChainPolicyDrop
	chain := func(name string, hook *nftables.ChainHook) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeFilter,
			Hooknum: hook, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	}
	accept := func(chain *nftables.Chain, matches ...[]expr.Any) {
		r := &nftables.Rule{Table: t, Chain: chain}
		for _, m := range matches {
			r.Exprs = append(r.Exprs, m...)
		}
		r.Exprs = append(r.Exprs, &expr.Verdict{Kind: expr.VerdictAccept})
		c.AddRule(r)
	}
	forward, input := chain("forward", nftables.ChainHookForward), chain("input", nftables.ChainHookInput)
	accept(forward, name(expr.MetaKeyOIFNAME, uplinkName), marked(PassMark))
	accept(forward, prefixed(expr.MetaKeyIIFNAME, slotPrefix), prefixed(expr.MetaKeyOIFNAME, slotPrefix), marked(PassMark))
	accept(forward, name(expr.MetaKeyIIFNAME, uplinkName), answers())
	accept(input, name(expr.MetaKeyIIFNAME, "lo"))
	accept(input, name(expr.MetaKeyIIFNAME, uplinkName), answers())
	accept(input, marked(PassMark))
	accept(input, marked(ProxyMark))
	post := c.AddChain(&nftables.Chain{Name: "postrouting", Table: t, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	c.AddRule(&nftables.Rule{Table: t, Chain: post, Exprs: append(name(expr.MetaKeyOIFNAME, uplinkName), &expr.Masq{})})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("write the router's nftables: %w", err)
	}
	return nil
}

// guardHost refuses everything from the router that is for the host itself, whatever addresses the host has or will
// have, and hides the router behind the host's address.
func (u *Uplink) guardHost() error {
	c, err := connect(u.Host)
	if err != nil {
		return err
	}
	defer func() { _ = c.CloseLasting() }()
	t := renew(c, u.table())
	input := c.AddChain(&nftables.Chain{Name: "input", Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityRef(-300)})
	from := name(expr.MetaKeyIIFNAME, u.Name)
	c.AddRule(&nftables.Rule{Table: t, Chain: input, Exprs: append(from, &expr.Verdict{Kind: expr.VerdictDrop})})
	if u.Translate {
		post := c.AddChain(&nftables.Chain{Name: "postrouting", Table: t, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		c.AddRule(&nftables.Rule{Table: t, Chain: post, Exprs: append(name(expr.MetaKeyIIFNAME, u.Name), &expr.Masq{})})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("write the uplink's nftables: %w", err)
	}
	return nil
}

func connect(ns *os.File) (*nftables.Conn, error) {
	opts := []nftables.ConnOption{nftables.AsLasting()}
	if ns != nil {
		opts = append(opts, nftables.WithNetNSFd(int(ns.Fd())))
	}
	c, err := nftables.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// renew makes a table anew: what an earlier process left in it goes away in the same transaction.
func renew(c *nftables.Conn, t *nftables.Table) *nftables.Table {
	c.AddTable(t)
	c.DelTable(t)
	return c.AddTable(t)
}

// name matches an interface by name.
func name(key expr.MetaKey, s string) []expr.Any {
	b := make([]byte, 16)
	copy(b, s)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: b}}
}

// prefixed matches interfaces by the start of their names.
func prefixed(key expr.MetaKey, s string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(s)}}
}

func marked(mark uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(mark)}}
}

// answers matches packets of connections that were opened from this side, and errors about them.
func answers() []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Xor: make([]byte, 4),
			Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)}}
}
