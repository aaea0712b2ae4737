// Parsing. What cannot be classified for certain is not let through: IP options, fragments, extension headers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "maps.h"

struct packet {
	union addr local, remote; // the sandbox's, the other's
	__u16 local_port, remote_port;
	__u8 protocol; // ICMP for both families
	__u8 tcp_flags;
	__u8 v6;
	__u8 related;    // an ICMP error: ports and remote are those of the flow that it is about
	__u8 neighbour;  // ND
	__u8 multicast;
	__u8 pad[2];
	__u32 l4; // offset
	__u32 seq, ack;
	__u32 segment; // sequence space that a TCP segment takes
};

struct ipv4 {
	__u8 version_ihl, tos;
	__u16 len, id, fragment;
	__u8 ttl, protocol;
	__u16 csum;
	__u32 from, to;
};

struct ipv6 {
	__u32 version;
	__u16 len;
	__u8 next, hops;
	union addr from, to;
} __attribute__((packed, aligned(4)));

struct tcp {
	__u16 from, to;
	__u32 seq, ack;
	__u8 offset, flags;
	__u16 window, csum, urgent;
};

struct icmp {
	__u8 type, code;
	__u16 csum;
	__u16 id, seq;
};

// GET copies a header out of a packet: directly where it lies in one piece, as it nearly always does.
#define GET(skb, at, to)                                                                                      \
	({                                                                                                    \
		__u32 _at = (at);                                                                             \
		typeof(to) _from = (void *)(long)(skb)->data + _at;                                           \
		int _err = 0;                                                                                 \
		if ((void *)(_from + 1) <= (void *)(long)(skb)->data_end)                                     \
			*(to) = *_from;                                                                       \
		else                                                                                          \
			_err = skb_load(skb, _at, to, sizeof(*(to)));                                         \
		_err;                                                                                         \
	})

INLINE void map_v4(union addr *a, __u32 v4)
{
	a->d[0] = 0;
	a->w[2] = be32(0xffff);
	a->w[3] = v4;
}

INLINE int same(const union addr *a, const union addr *b)
{
	return a->d[0] == b->d[0] && a->d[1] == b->d[1];
}

INLINE int is_gateway(const union addr *a)
{
	return (a->d[0] == config.gateway4.d[0] && a->d[1] == config.gateway4.d[1]) ||
	       (a->d[0] == config.gateway6.d[0] && a->d[1] == config.gateway6.d[1]);
}

INLINE int mapped(const union addr *a)
{
	return a->d[0] == 0 && a->w[2] == be32(0xffff);
}

// inner reads the start of the packet that an ICMP error is about. Such a packet went the other way.
CALL int inner(struct __sk_buff *skb, struct packet *p, __u32 at, int outward)
{
	union addr from, to;
	__u8 protocol;
	__u16 port[2] = {};
	if (p->v6) {
		struct ipv6 ip;
		if (skb_load(skb, at, &ip, sizeof(ip)))
			return R_MALFORMED;
		from = ip.from, to = ip.to, protocol = ip.next, at += sizeof(ip);
		if (protocol == ICMP || mapped(&from) || mapped(&to))
			return R_MALFORMED;
		if (protocol == ICMPV6)
			protocol = ICMP;
	} else {
		struct ipv4 ip;
		if (skb_load(skb, at, &ip, sizeof(ip)))
			return R_MALFORMED;
		if (ip.version_ihl != 0x45 || ip.fragment & be16(0x1fff))
			return R_MALFORMED;
		map_v4(&from, ip.from);
		map_v4(&to, ip.to);
		protocol = ip.protocol, at += sizeof(ip);
	}
	if (protocol != TCP && protocol != UDP && protocol != ICMP)
		return R_PROTOCOL;
	if (skb_load(skb, protocol == ICMP ? at + 4 : at, port, sizeof(port)))
		return R_MALFORMED;
	if (protocol == ICMP)
		port[1] = port[0];
	// Outward, the error is about what came in: its source is the remote end, and the error goes back there.
	union addr *local = outward ? &to : &from, *remote = outward ? &from : &to;
	if (!same(local, &p->local))
		return R_SOURCE;
	if (outward && !same(remote, &p->remote))
		return R_SOURCE;
	p->remote = *remote;
	p->local_port = be16(outward ? port[1] : port[0]);
	p->remote_port = protocol == ICMP ? 0 : be16(outward ? port[0] : port[1]);
	p->protocol = protocol;
	p->related = 1;
	return R_NONE;
}

// transport reads what follows the IP header.
INLINE int transport(struct __sk_buff *skb, struct packet *p, __u32 protocol, __u32 len, int outward)
{
	struct {
		__u16 from, to;
	} port = {};
	__u32 at = p->v6 ? ETH_LEN + sizeof(struct ipv6) : ETH_LEN + sizeof(struct ipv4);
	if (protocol == TCP) {
		struct tcp h;
		if (len < sizeof(h) || GET(skb, at, &h))
			return R_MALFORMED;
		__u32 header = (h.offset >> 4) * 4;
		if (header < sizeof(h) || header > len)
			return R_MALFORMED;
		port.from = h.from, port.to = h.to;
		p->tcp_flags = h.flags;
		p->seq = be32(h.seq), p->ack = be32(h.ack);
		p->segment = len - header + !!(h.flags & SYN) + !!(h.flags & FIN);
	} else if (protocol == UDP) {
		if (len < 8 || GET(skb, at, &port))
			return R_MALFORMED;
	} else if (protocol == (p->v6 ? ICMPV6 : ICMP)) {
		struct icmp h;
		if (len < sizeof(h) || GET(skb, at, &h))
			return R_MALFORMED;
		p->protocol = ICMP;
		__u8 ask = p->v6 ? 128 : 8, answer = p->v6 ? 129 : 0;
		if (h.type == (outward ? ask : answer) && h.code == 0) {
			p->local_port = be16(h.id);
			return R_NONE;
		}
		if (p->v6 && h.type >= 133 && h.type <= 137) {
			p->neighbour = h.type;
			return R_NONE;
		}
		if (p->v6 ? h.type >= 1 && h.type <= 4 : h.type == 3 || h.type == 11 || h.type == 12)
			return inner(skb, p, at + 8, outward);
		return R_PROTOCOL;
	} else {
		return R_PROTOCOL;
	}
	p->protocol = protocol;
	p->local_port = be16(outward ? port.from : port.to);
	p->remote_port = be16(outward ? port.to : port.from);
	return R_NONE;
}

// parse reads an IP packet. outward: from the sandbox. The addresses are filled in even when it refuses, as far
// as it came.
INLINE int parse(struct __sk_buff *skb, struct packet *p, int outward)
{
	if (skb->protocol == be16(ETH_IPV4)) {
		struct ipv4 ip;
		if (GET(skb, ETH_LEN, &ip))
			return R_MALFORMED;
		map_v4(&p->local, outward ? ip.from : ip.to);
		map_v4(&p->remote, outward ? ip.to : ip.from);
		p->multicast = be32(ip.to) >> 28 == 14 || ip.to == 0xffffffff;
		p->protocol = ip.protocol;
		if (ip.version_ihl != 0x45)
			return ip.version_ihl >> 4 == 4 ? R_PROTOCOL : R_MALFORMED;
		__u32 len = be16(ip.len);
		if (len < sizeof(ip) || len > skb->len - ETH_LEN)
			return R_MALFORMED;
		if (ip.fragment & be16(0x3fff))
			return R_FRAGMENT;
		p->l4 = ETH_LEN + sizeof(ip);
		return transport(skb, p, ip.protocol, len - sizeof(ip), outward);
	}
	struct ipv6 ip;
	if (GET(skb, ETH_LEN, &ip))
		return R_MALFORMED;
	p->v6 = 1;
	p->local = outward ? ip.from : ip.to;
	p->remote = outward ? ip.to : ip.from;
	p->multicast = ip.to.b[0] == 0xff;
	p->protocol = ip.next;
	if ((ip.version & be32(0xf0000000)) != be32(0x60000000))
		return R_MALFORMED;
	if (mapped(&p->local) || mapped(&p->remote))
		return R_FORBIDDEN; // they would be taken for IPv4 below
	__u32 len = be16(ip.len);
	if (len > skb->len - ETH_LEN - sizeof(ip))
		return R_MALFORMED;
	if (ip.next == 44)
		return R_FRAGMENT;
	p->l4 = ETH_LEN + sizeof(ip);
	return transport(skb, p, ip.next, len, outward);
}
