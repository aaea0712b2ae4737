package network

import (
	"slices"
	"sort"
	"strings"
)

// ports is a set of ports: ranges that are sorted and do not touch.
type ports []PortRange

// normal sorts and joins ranges in any order.
func (p ports) normal() ports {
	if len(p) < 2 {
		return p
	}
	s := slices.Clone(p)
	slices.SortFunc(s, func(a, b PortRange) int { return int(a.From) - int(b.From) })
	out := s[:1]
	for _, r := range s[1:] {
		last := &out[len(out)-1]
		if int(r.From) <= int(last.To)+1 {
			last.To = max(last.To, r.To)
		} else {
			out = append(out, r)
		}
	}
	return out
}

func (p ports) has(port uint16) bool {
	i := sort.Search(len(p), func(i int) bool { return p[i].To >= port })
	return i < len(p) && p[i].From <= port
}

func (p ports) union(q ports) ports {
	switch {
	case len(p) == 0:
		return q
	case len(q) == 0:
		return p
	}
	return slices.Concat(p, q).normal()
}

func (p ports) and(q ports) ports {
	var out ports
	for i, j := 0, 0; i < len(p) && j < len(q); {
		from, to := max(p[i].From, q[j].From), min(p[i].To, q[j].To)
		if from <= to {
			out = append(out, PortRange{from, to})
		}
		if p[i].To < q[j].To {
			i++
		} else {
			j++
		}
	}
	return out
}

func (p ports) minus(q ports) ports {
	if len(q) == 0 {
		return p
	}
	var out ports
	for _, r := range p {
		from := int(r.From)
		for _, d := range q {
			if int(d.To) < from || d.From > r.To {
				continue
			}
			if int(d.From) > from {
				out = append(out, PortRange{uint16(from), d.From - 1})
			}
			from = int(d.To) + 1
		}
		if from <= int(r.To) {
			out = append(out, PortRange{uint16(from), r.To})
		}
	}
	return out
}

// reach is what may be reached at one destination.
type reach struct {
	tcp, udp ports
	icmp     bool
}

var (
	everything = reach{ports{allPorts}, ports{allPorts}, true}
	quic       = ports{{443, 443}}
	// internet is what "open" allows at a public address: all but the ports of other resolvers.
	internet = reach{ports{allPorts}.minus(resolvers), ports{allPorts}.minus(resolvers), true}
	// resolvers are the ports of DNS, and of DNS over TLS and QUIC.
	resolvers = ports{{53, 53}, {853, 853}}
	// checked are the TCP ports on which what a name opens passes the check of SNI or Host.
	checked = ports{{80, 80}, {443, 443}}
)

// String is for people: "tcp 80, 443; icmp".
func (r reach) String() string {
	var parts []string
	for _, one := range []struct {
		name string
		p    ports
	}{{"tcp", r.tcp}, {"udp", r.udp}} {
		var texts []string
		for _, t := range one.p {
			texts = append(texts, t.String())
		}
		if len(texts) > 0 {
			parts = append(parts, one.name+" "+strings.Join(texts, ", "))
		}
	}
	if r.icmp {
		parts = append(parts, "icmp")
	}
	return strings.Join(parts, "; ")
}

func (r reach) empty() bool { return len(r.tcp) == 0 && len(r.udp) == 0 && !r.icmp }

func (r reach) has(p Protocol, port uint16) bool {
	switch p {
	case TCP:
		return r.tcp.has(port)
	case UDP:
		return r.udp.has(port)
	case ICMP:
		return r.icmp
	}
	return false
}

func (r reach) union(q reach) reach {
	return reach{r.tcp.union(q.tcp), r.udp.union(q.udp), r.icmp || q.icmp}
}

func (r reach) and(q reach) reach {
	return reach{r.tcp.and(q.tcp), r.udp.and(q.udp), r.icmp && q.icmp}
}

func (r reach) minus(q reach) reach {
	return reach{r.tcp.minus(q.tcp), r.udp.minus(q.udp), r.icmp && !q.icmp}
}

// limited keeps one protocol of r.
func (r reach) limited(p Protocol) reach {
	switch p {
	case TCP:
		return reach{tcp: r.tcp}
	case UDP:
		return reach{udp: r.udp}
	case ICMP:
		return reach{icmp: r.icmp}
	}
	return r
}

// reach is what a rule opens or closes, given the ports of the service that it names.
func (r Rule) reach(service ports) reach {
	if len(r.Ports) > 0 {
		q := reach{tcp: r.Ports, udp: r.Ports}.limited(r.Protocol)
		if r.Action == Allow && !r.Prefix.IsValid() {
			q.udp = q.udp.minus(quic)
		}
		if r.Service != "" && r.Protocol == Any && r.Action == Allow {
			q.udp = nil
		}
		return q
	}
	switch {
	case r.Action == Deny || r.Prefix.IsValid():
		return everything.limited(r.Protocol)
	case r.Protocol == ICMP:
		return reach{icmp: true}
	case r.Service != "":
		return reach{tcp: service}
	}
	return reach{tcp: checked}
}
