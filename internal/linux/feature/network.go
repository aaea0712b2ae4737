package feature

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"

	"github.com/opendsec/dsec/internal/linux"
)

// Network are the features that sandboxes' networks need. They are probed by making and loading what is used.
func Network() []Feature {
	return []Feature{
		{"network namespaces and veth", "", Wanted, "sandboxes have no network", veth},
		{"eBPF on links", "6.12", Wanted, "network policies fall back to nftables: slower to change, programs hear of a refusal from the link", onLinks},
		{"eBPF on control groups", "5.8", Wanted, "programs hear of a refusal from the link instead of at once", onGroups},
		{"eBPF maps of policies", "5.8", Wanted, "network policies fall back to nftables", policyMaps},
		{"eBPF socket assignment", "5.7", Wanted, "domain rules cannot be checked by SNI and Host: eBPF falls back to nftables", assign},
		{"nftables", "5.10", Wanted, "sandboxes have no way out of the router: no address translation", nftables},
		{"tap interfaces", "module tun", Later, "microVMs have no network", tap},
		{"nft", "package nftables", Later, "no fallback where eBPF is refused", tool("nft")},
	}
}

// tap makes an interface in a namespace of its own and lets it go.
func tap() (string, error) {
	s, err := linux.NewNetSpace()
	if err != nil {
		return "", err
	}
	defer s.Close()
	return "", s.Do(func() error {
		queue, err := linux.OpenTap("a", 0)
		if err != nil {
			return err
		}
		return queue.Close()
	})
}

// veth makes a pair between two namespaces and lets it go with them.
func veth() (string, error) {
	a, err := linux.NewNetSpace()
	if err != nil {
		return "", err
	}
	defer a.Close()
	b, err := linux.NewNetSpace()
	if err != nil {
		return "", err
	}
	defer b.Close()
	return "", a.Do(func() error {
		r, err := linux.OpenRoute()
		if err != nil {
			return err
		}
		defer r.Close()
		return r.Apply(linux.AddVeth(linux.VethEnd{Name: "a"}, linux.VethEnd{Name: "b", Space: b.File()}, 0))
	})
}

func load(kind ebpf.ProgramType, at ebpf.AttachType, ins asm.Instructions) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, AttachType: at, License: "Apache-2.0", Instructions: ins})
}

var passes = asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}

// onLinks puts a program on the loopback of a new namespace.
func onLinks() (string, error) {
	p, err := load(ebpf.SchedCLS, ebpf.AttachNone, passes)
	if err != nil {
		return "", err
	}
	defer p.Close()
	s, err := linux.NewNetSpace()
	if err != nil {
		return "", err
	}
	defer s.Close()
	return "", s.Do(func() error {
		lo, err := net.InterfaceByName("lo")
		if err != nil {
			return err
		}
		r, err := linux.OpenRoute()
		if err != nil {
			return err
		}
		defer r.Close()
		return r.Apply(linux.AddHooks(lo.Index), linux.HookProgram(lo.Index, false, p.FD(), "probe"), linux.HookProgram(lo.Index, true, p.FD(), "probe"))
	})
}

func onGroups() (string, error) {
	for _, at := range []ebpf.AttachType{ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect, ebpf.AttachCGroupUDP4Sendmsg, ebpf.AttachCGroupUDP6Sendmsg} {
		// The answer must be 0 or 1.
		p, err := load(ebpf.CGroupSockAddr, at, passes)
		if err != nil {
			return "", fmt.Errorf("%s: %w", at, err)
		}
		p.Close()
	}
	return "", features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnGetNetnsCookie)
}

func policyMaps() (string, error) {
	trie := &ebpf.MapSpec{Type: ebpf.LPMTrie, KeySize: 20, ValueSize: 4, MaxEntries: 16, Flags: 1 /* BPF_F_NO_PREALLOC */}
	for _, spec := range []*ebpf.MapSpec{
		{Type: ebpf.HashOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 16, InnerMap: trie},
		{Type: ebpf.LRUHash, KeySize: 28, ValueSize: 56, MaxEntries: 1024},
		{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 16, Flags: 1 << 10 /* BPF_F_MMAPABLE */},
		{Type: ebpf.RingBuf, MaxEntries: uint32(os.Getpagesize())},
	} {
		m, err := ebpf.NewMap(spec)
		if err != nil {
			return "", fmt.Errorf("%s: %w", spec.Type, err)
		}
		m.Close()
	}
	return "", nil
}

func assign() (string, error) {
	return "", errors.Join(features.HaveProgramHelper(ebpf.SchedCLS, asm.FnSkAssign), features.HaveProgramHelper(ebpf.SchedCLS, asm.FnSkcLookupTcp))
}

// nftables tells whether the kernel has it, by asking for tables in a new namespace.
func nftables() (string, error) {
	s, err := linux.NewNetSpace()
	if err != nil {
		return "", err
	}
	defer s.Close()
	return "", s.Do(linux.TryNftables)
}
