package network

import "net/netip"

// special is a range of addresses that is not simply the internet.
type special struct {
	prefix netip.Prefix
	what   string
}

func specials(list ...string) []special {
	var out []special
	for i := 0; i < len(list); i += 2 {
		out = append(out, special{netip.MustParsePrefix(list[i]), list[i+1]})
	}
	return out
}

// hard are the ranges that no rule opens. Ranges that embed IPv4 addresses in IPv6 are among them: through a
// translator they would lead past every rule for IPv4.
var hard = specials(
	"0.0.0.0/8", "the host itself",
	"127.0.0.0/8", "loopback",
	"169.254.0.0/16", "link-local (metadata services)",
	"192.0.0.0/24", "protocol assignments (metadata services)",
	"168.63.129.16/32", "a metadata service",
	"100.100.100.200/32", "a metadata service",
	"224.0.0.0/4", "multicast",
	"240.0.0.0/4", "reserved and broadcast",
	"::/96", "loopback and unspecified",
	"::ffff:0:0/96", "IPv4 inside IPv6",
	"64:ff9b::/96", "IPv4 inside IPv6 (NAT64)",
	"64:ff9b:1::/48", "IPv4 inside IPv6 (NAT64)",
	"100::/64", "the discard range",
	"2001::/32", "IPv4 inside IPv6 (Teredo)",
	"2002::/16", "IPv4 inside IPv6 (6to4)",
	"fd00:ec2::254/128", "a metadata service",
	"fd20:ce::254/128", "a metadata service",
	"fe80::/10", "link-local",
	"fec0::/10", "site-local",
	"ff00::/8", "multicast",
)

// private are the ranges that only a rule for a range inside them opens.
var private = specials(
	"10.0.0.0/8", "private",
	"172.16.0.0/12", "private",
	"192.168.0.0/16", "private",
	"100.64.0.0/10", "private (carrier-grade NAT)",
	"198.18.0.0/15", "private (benchmarks)",
	"fc00::/7", "private (unique local)",
)

// AlwaysDenied are the ranges that no rule opens, those of the node aside.
func AlwaysDenied() []netip.Prefix {
	out := make([]netip.Prefix, len(hard))
	for i, s := range hard {
		out[i] = s.prefix
	}
	return out
}

// IsPrivate tells whether an address lies in a range that only a rule for a range inside it opens, and no name.
func IsPrivate(a netip.Addr) bool {
	_, ok := isPrivate(single(a.Unmap()))
	return ok
}

func within(list []special, p netip.Prefix) (string, bool) {
	for _, s := range list {
		if s.prefix.Bits() <= p.Bits() && s.prefix.Contains(p.Addr()) {
			return s.what, true
		}
	}
	return "", false
}

// alwaysDenied says whether a range lies wholly in what no rule opens, and what that is.
func alwaysDenied(p netip.Prefix) (string, bool) { return within(hard, p) }

// isPrivate says whether a range lies wholly in a private one.
func isPrivate(p netip.Prefix) (string, bool) { return within(private, p) }

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
