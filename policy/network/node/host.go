package node

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/sandbox"
)

// maxResolvers is how many name servers of a resolv.conf are asked, as the C library does.
const maxResolvers = 3

// resolvers reads the name servers of a resolv.conf.
func resolvers(path string) ([]netip.AddrPort, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []netip.AddrPort
	sc := bufio.NewScanner(f)
	for sc.Scan() && len(out) < maxResolvers {
		if w := strings.Fields(sc.Text()); len(w) >= 2 && w[0] == "nameserver" {
			if a, err := netip.ParseAddr(w[1]); err == nil {
				out = append(out, netip.AddrPortFrom(a, datapath.DNSPort))
			}
		}
	}
	if err := sc.Err(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: %w: it names no name server to ask for sandboxes", path, sandbox.ErrInvalid)
	}
	return out, nil
}

// ownAddresses are those of the host's interfaces.
func ownAddresses() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	out := []netip.Prefix{}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			out = append(out, netip.PrefixFrom(p.Addr().Unmap(), p.Addr().Unmap().BitLen()))
		}
	}
	return out, nil
}
