package datapath

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/opendsec/dsec/policy/network/link"
)

// checkedBit in a connection's mark says that it goes to the proxy.
const checkedBit = 0x80000000

// marker is the chain that names the version of a table.
func (f *filter) marker(base string) string {
	h := sha256.Sum256([]byte(base))
	return "v" + hex.EncodeToString(h[:8])
}

// told has a packet logged, or goes on at a chain that counts it where its slot has told too much: 64 at once, 32 a second.
func told(side, otherwise string) string {
	return fmt.Sprintf("\t\tupdate @told { meta %s limit rate over 32/second burst 64 packets } goto %s\n\t\tlog group %d snaplen %d queue-threshold 1\n",
		side, otherwise, logGroup, logBytes)
}

// base is the table without slots.
func (f *filter) base() string {
	p := f.cfg.Router.Plan()
	var b strings.Builder
	b.WriteString(`table inet datapath {
	set sources4 { type iface_index . ether_addr . ipv4_addr; }
	set sources6 { type iface_index . ether_addr . ipv6_addr; }
	set never4 { type ipv4_addr; flags interval; auto-merge; }
	set never6 { type ipv6_addr; flags interval; auto-merge; }
	set refused { typeof meta iif . meta mark; size 262144; flags dynamic; }
	set told { typeof meta iif; size 65536; flags dynamic; }
	set untold { typeof meta iif; size 65536; flags dynamic; }
	set sent { typeof meta iif; size 65536; flags dynamic; }
	set got { typeof meta oif; size 65536; flags dynamic; }
	set fresh { typeof meta iif . ct mark; }
	map group4 { type ipv4_addr : mark; }
	map group6 { type ipv6_addr : mark; }
	set members4 { type ipv4_addr . mark; }
	set members6 { type ipv6_addr . mark; }
	map slots { type iface_index : verdict; }
	map rates { type iface_index : verdict; }
`)
	for r := ByPolicy; r <= Cut; r++ {
		end := "drop"
		switch r {
		case ByPolicy, Forbidden, Cut, NoProxy, TooManyFlows:
			end = "meta l4proto tcp reject with tcp reset\n\t\treject with icmpx type admin-prohibited"
		}
		tell := told("iif", fmt.Sprintf("untold%d", r))
		if r == OverRate || r == Multicast || r == Neighbour { // counted, no event
			tell = ""
		}
		fmt.Fprintf(&b, "\tchain refuse%d {\n\t\t%s\n\t}\n\tchain untold%[1]d {\n\t\tupdate @untold { meta iif counter }\n\t\tgoto refuse%[1]d\n\t}\n", r, end)
		fmt.Fprintf(&b, "\tchain d%d {\n\t\tmeta mark set %[1]d\n\t\tupdate @refused { meta iif . meta mark counter }\n%s\t\tgoto refuse%[1]d\n\t}\n", r, tell)
	}
	fmt.Fprintf(&b, `
	chain untoldin { update @untold { meta oif counter }; drop; }
	chain din {
		meta mark set %[1]d
		update @refused { meta oif . meta mark counter }
%[5]s		drop
	}
	chain permit { ct mark set meta mark; goto pass; }
	chain pass { meta mark set %#[2]x; iifname "s*" update @sent { meta iif counter }; oifname "s*" update @got { meta oif counter }; accept; }
	chain meet { meta mark set %#[2]x; update @got { meta oif counter }; accept; }
	chain check {
		iifname != "s*" goto din
		ct mark set meta mark or %#[4]x
		update @sent { meta iif counter }
		meta mark set %#[3]x
		accept
	}
`, Inbound, link.PassMark, link.ProxyMark, uint32(checkedBit), told("oif", "untoldin"))
	// To the proxy's socket, in a chain of its own: the kernel allows it at this hook alone.
	b.WriteString("\tchain steer {\n\t\ttype filter hook prerouting priority -149;\n")
	fmt.Fprintf(&b, "\t\tiifname != \"s*\" accept\n\t\tmeta mark != %#x accept\n", link.ProxyMark)
	if f.cfg.ProxyPort != 0 {
		fmt.Fprintf(&b, `		meta nfproto ipv4 meta l4proto tcp tproxy ip to %[1]s:%[3]d accept
		meta nfproto ipv6 meta l4proto tcp tproxy ip6 to [%[2]s]:%[3]d accept
`, p.Gateway4(), p.Gateway6(), f.cfg.ProxyPort)
	}
	fmt.Fprintf(&b, `		goto d%[1]d
	}
	chain known { ct mark and %#[2]x == %#[2]x goto check; goto pass; }
	chain raw {
		type filter hook prerouting priority -450;
		iifname != "s*" accept
		meta iifkind "tun" meta length > %[8]d goto d%[7]d
		ip daddr { 224.0.0.0/4, 255.255.255.255 } goto d%[3]d
		icmpv6 type { 133, 134, 135, 136, 137 } goto d%[4]d
		ip6 daddr ff00::/8 goto d%[3]d
		ip hdrlength != 5 goto d%[5]d
		ip frag-off & 0x3fff != 0 goto d%[6]d
		ip6 nexthdr 44 goto d%[6]d
		ip6 nexthdr != { 6, 17, 58 } goto d%[5]d
		ip protocol != { 1, 6, 17 } goto d%[5]d
		icmp type != { echo-request, destination-unreachable, time-exceeded, parameter-problem } goto d%[5]d
		icmpv6 type != { echo-request, destination-unreachable, packet-too-big, time-exceeded, parameter-problem } goto d%[5]d
	}
`, NoProxy, uint32(checkedBit), Multicast, Neighbour, WrongProtocol, Fragment, Malformed, f.cfg.Router.MTU())
	fmt.Fprintf(&b, `	chain judge {
		ether daddr != %[1]s goto d%[2]d
		iif vmap @rates
		ip daddr %[3]s meta l4proto { tcp, udp } th dport %[5]d goto pass
		ip6 daddr %[4]s meta l4proto { tcp, udp } th dport %[5]d goto pass
		ct state invalid meta l4proto { icmp, icmpv6 } goto d%[6]d
		ct state invalid meta l4proto udp goto d%[7]d
		meta l4proto { tcp, udp } meta mark set ip saddr map @group4 ip daddr . meta mark @members4 goto pass
		meta l4proto { tcp, udp } meta mark set ip6 saddr map @group6 ip6 daddr . meta mark @members6 goto pass
		ct direction reply ct original ip saddr %[3]s goto pass
		ct direction reply ct original ip6 saddr %[4]s goto pass
		ct direction reply ct state related goto pass
		ct direction reply goto d%[6]d
		ip daddr @never4 goto d%[8]d
		ip6 daddr @never6 goto d%[8]d
		ct state related goto pass
		meta iif . ct mark @fresh goto known
		iif vmap @slots
		goto d%[9]d
	}
	chain pre {
		type filter hook prerouting priority -150;
		iifname != "s*" accept
		meta iif . ether saddr . ip saddr @sources4 goto judge
		meta iif . ether saddr . ip6 saddr @sources6 goto judge
		goto d%[10]d
	}
	chain forwarding {
		type filter hook forward priority -10;
		oifname != "s*" accept
		oif vmap @rates
		meta l4proto { tcp, udp } meta mark set ip saddr map @group4 ip daddr . meta mark @members4 goto meet
		meta l4proto { tcp, udp } meta mark set ip6 saddr map @group6 ip6 daddr . meta mark @members6 goto meet
		ct original ip daddr @never4 goto din
		ct original ip6 daddr @never6 goto din
		ct state related goto pass
		ct direction original goto din
		meta oif . ct mark @fresh goto pass
		oif vmap @slots
		goto din
	}
}
table arp datapath {
	chain input {
		type filter hook input priority 0;
		iifname "s*" drop
	}
}
`, hardware(p.GatewayMAC()), Neighbour, p.Gateway4(), p.Gateway6(), DNSPort, Inbound, Malformed, Forbidden, ByPolicy, WrongSource)
	return b.String()
}
