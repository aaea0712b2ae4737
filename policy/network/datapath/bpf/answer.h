// What the programs answer themselves: refusals, so that a program inside hears at once that it may not, and the
// gateway's hardware address. Answers go back out of the interface that the question came from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "policy.h"

struct ethernet {
	__u8 to[6], from[6];
	__u16 type;
};

struct arp {
	__u16 hardware, protocol;
	__u8 hardware_len, protocol_len;
	__u16 op;
	__u8 from_mac[6];
	__u8 from[4];
	__u8 to_mac[6];
	__u8 to[4];
} __attribute__((packed));

struct nd {
	__u8 type, code;
	__u16 csum;
	__u32 flags;
	union addr target;
	__u8 option, option_len;
	__u8 mac[6];
} __attribute__((packed, aligned(4)));

INLINE void copy_mac(__u8 *to, const volatile __u8 *from)
{
	for (int i = 0; i < 6; i++)
		to[i] = from[i];
}

INLINE __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

INLINE int back(struct __sk_buff *skb)
{
	skb->mark = config.answer_mark;
	return redirect(skb->ifindex, 0);
}

INLINE void frame(struct ethernet *e, const struct slot *s, __u16 type)
{
	copy_mac(e->to, s->mac);
	copy_mac(e->from, config.gateway_mac);
	e->type = be16(type);
}

// The start of an answer, as it lies in the packet after the Ethernet header.
struct head4 {
	struct ethernet eth;
	struct ipv4 ip;
} __attribute__((packed));

struct head6 {
	struct ethernet eth;
	struct ipv6 ip;
} __attribute__((packed));

// reply_head writes Ethernet and IP headers of an answer from `from` to the sandbox, and returns the sum of the
// pseudo header.
INLINE __u32 reply_head(struct __sk_buff *skb, const struct slot *s, int v6, const union addr *from, __u32 protocol, __u32 len)
{
	__u32 pseudo[10] = {};
	struct ethernet e;
	frame(&e, s, v6 ? ETH_IPV6 : ETH_IPV4);
	if (skb_store(skb, 0, &e, sizeof(e), 0))
		return 0;
	if (v6) {
		struct ipv6 ip = {.version = be32(0x60000000), .len = be16(len), .next = protocol, .hops = 255, .from = *from, .to = s->addr6};
		if (skb_store(skb, ETH_LEN, &ip, sizeof(ip), BPF_F_INVALIDATE_HASH))
			return 0;
		for (int i = 0; i < 4; i++)
			pseudo[i] = from->w[i], pseudo[i + 4] = s->addr6.w[i];
		pseudo[8] = be32(len), pseudo[9] = be32(protocol);
		return csum_add(0, 0, pseudo, sizeof(pseudo), 0);
	}
	struct ipv4 ip = {.version_ihl = 0x45, .len = be16(sizeof(ip) + len), .fragment = be16(0x4000), .ttl = 64, .protocol = protocol, .from = from->w[3], .to = s->addr4.w[3]};
	ip.csum = fold(csum_add(0, 0, &ip, sizeof(ip), 0));
	if (skb_store(skb, ETH_LEN, &ip, sizeof(ip), BPF_F_INVALIDATE_HASH))
		return 0;
	pseudo[0] = from->w[3], pseudo[1] = s->addr4.w[3], pseudo[2] = be32(protocol << 16 | len);
	return csum_add(0, 0, pseudo, 12, 0);
}

// reset answers a TCP segment by one that ends its connection.
CALL int reset(struct __sk_buff *skb, struct packet *p, struct slot *s)
{
	if (!p || !s)
		return DROP;
	struct tcp h = {.from = be16(p->remote_port), .to = be16(p->local_port), .offset = 5 << 4, .flags = RST};
	if (p->tcp_flags & ACK)
		h.seq = be32(p->ack);
	else
		h.ack = be32(p->seq + p->segment), h.flags = RST | ACK;
	if (skb_resize(skb, (p->v6 ? 54 : 34) + sizeof(h), 0))
		return DROP;
	__u32 sum = reply_head(skb, s, p->v6, &p->remote, TCP, sizeof(h));
	h.csum = fold(csum_add(0, 0, &h, sizeof(h), sum));
	if (skb_store(skb, p->v6 ? 54 : 34, &h, sizeof(h), 0))
		return DROP;
	return back(skb);
}

struct unreachable {
	__u8 type, code;
	__u16 csum;
	__u32 unused;
	__u8 about[48];
};

// unreachable answers any other packet by "administratively prohibited", with the start of the packet.
CALL int unreachable(struct __sk_buff *skb, struct packet *p, struct slot *s)
{
	struct unreachable u = {};
	if (!p || !s)
		return DROP;
	union addr gateway;
	__u32 about = p->v6 ? 48 : 28;
	for (int i = 0; i < 4; i++)
		gateway.w[i] = p->v6 ? config.gateway6.w[i] : config.gateway4.w[i];
	if (p->v6) {
		u.type = 1, u.code = 1;
		if (skb_load(skb, ETH_LEN, u.about, 48))
			return DROP;
	} else {
		u.type = 3, u.code = 13;
		if (skb_load(skb, ETH_LEN, u.about, 28))
			return DROP;
	}
	if (skb_resize(skb, (p->v6 ? 54 : 34) + 8 + about, 0))
		return DROP;
	__u32 sum = reply_head(skb, s, p->v6, &gateway, p->v6 ? ICMPV6 : ICMP, 8 + about);
	if (p->v6) {
		u.csum = fold(csum_add(0, 0, &u, 56, sum));
		if (skb_store(skb, 54, &u, 56, 0))
			return DROP;
	} else {
		u.csum = fold(csum_add(0, 0, &u, 36, 0));
		if (skb_store(skb, 34, &u, 36, 0))
			return DROP;
	}
	return back(skb);
}

// who_has answers ARP for the gateway, asked by the sandbox as itself. Nothing else of ARP passes.
CALL int who_has(struct __sk_buff *skb, struct slot *s)
{
	struct arp a;
	if (!s || skb_load(skb, ETH_LEN, &a, sizeof(a)))
		return R_MALFORMED;
	__u32 from, to;
	__builtin_memcpy(&from, a.from, 4);
	__builtin_memcpy(&to, a.to, 4);
	if (a.hardware != be16(1) || a.protocol != be16(ETH_IPV4) || a.hardware_len != 6 || a.protocol_len != 4 || a.op != be16(1))
		return R_NEIGHBOUR;
	if (from != s->addr4.w[3] || to != config.gateway4.w[3])
		return R_NEIGHBOUR;
	for (int i = 0; i < 6; i++)
		if (a.from_mac[i] != s->mac[i])
			return R_SOURCE;
	struct ethernet e;
	frame(&e, s, ETH_ARP);
	a.op = be16(2);
	copy_mac(a.from_mac, config.gateway_mac);
	copy_mac(a.to_mac, s->mac);
	__builtin_memcpy(a.from, &to, 4);
	__builtin_memcpy(a.to, &from, 4);
	if (skb_store(skb, 0, &e, sizeof(e), 0) || skb_store(skb, ETH_LEN, &a, sizeof(a), 0))
		return R_MALFORMED;
	return R_NONE;
}

// solicited does the same for IPv6.
CALL int solicited(struct __sk_buff *skb, struct packet *p, struct slot *s)
{
	struct nd n = {};
	if (!p || !s || p->neighbour != 135)
		return R_NEIGHBOUR;
	if (skb_load(skb, p->l4, &n, 24))
		return R_MALFORMED;
	if (n.target.d[0] != config.gateway6.d[0] || n.target.d[1] != config.gateway6.d[1] || !same(&p->local, &s->addr6))
		return R_NEIGHBOUR;
	n.type = 136, n.csum = 0, n.flags = be32(0x60000000), n.option = 2, n.option_len = 1;
	copy_mac(n.mac, config.gateway_mac);
	if (skb_resize(skb, 54 + sizeof(n), 0))
		return R_MALFORMED;
	union addr gateway = n.target;
	__u32 sum = reply_head(skb, s, 1, &gateway, ICMPV6, sizeof(n));
	n.csum = fold(csum_add(0, 0, &n, sizeof(n), sum));
	if (skb_store(skb, 54, &n, sizeof(n), 0))
		return R_MALFORMED;
	return R_NONE;
}
