// The programs: at the host's end of a sandbox's veth in both directions, on its control group, on the uplink.
// Built by "go generate" (see generate.go); the object lies beside this file's folder.
// SPDX-License-Identifier: Apache-2.0
#include "answer.h"

char _license[] SEC("license") = "Apache-2.0";

struct place {
	struct slot *slot;
	struct state *state;
	__u32 n, token, policy;
};

INLINE int find(struct place *at, __u32 n)
{
	at->n = n;
	at->slot = map_get(&slots, &n);
	at->state = map_get(&states, &n);
	volatile __u64 *now = map_get(&current, &n);
	if (!at->slot || !at->state || !now)
		return 0;
	__u64 word = *now;
	at->token = word >> 32, at->policy = word;
	return 1;
}

INLINE void denied(struct state *st, __u32 reason)
{
	if (reason < REASONS)
		__sync_fetch_and_add(&st->denied[reason], 1);
}

// refuse counts and tells a denial, and answers it where that helps.
INLINE int refuse(struct __sk_buff *skb, struct place *at, struct packet *p, __u32 reason)
{
	denied(at->state, reason);
	if (p->multicast || p->neighbour)
		return DROP; // every host sends some: not worth telling
	tell(at->state, p, at->n, at->token, E_DENIED | reason << 8);
	if (reason != R_POLICY && reason != R_FORBIDDEN && reason != R_CUT && reason != R_NO_PROXY && reason != R_FLOWS)
		return DROP;
	if (p->related || mapped(&p->remote) == p->v6)
		return DROP;
	if (p->protocol == TCP)
		return p->tcp_flags & RST ? DROP : reset(skb, p, at->slot);
	if (p->protocol == UDP || p->protocol == ICMP)
		return unreachable(skb, p, at->slot);
	return DROP;
}

// steer hands a TCP packet to the node's proxy: to the socket that has this connection, else to the listener.
// The proxy's socket is transparent, so its local address is the connection's original destination.
CALL int steer(struct __sk_buff *skb, struct packet *p)
{
	if (!p || p->protocol != TCP)
		return R_NO_PROXY;
	struct bpf_sock_tuple t = {};
	__u32 size = p->v6 ? sizeof(t.ipv6) : sizeof(t.ipv4);
	if (p->v6) {
		for (int i = 0; i < 4; i++)
			t.ipv6.saddr[i] = p->local.w[i], t.ipv6.daddr[i] = p->remote.w[i];
		t.ipv6.sport = be16(p->local_port), t.ipv6.dport = be16(p->remote_port);
	} else {
		t.ipv4.saddr = p->local.w[3], t.ipv4.daddr = p->remote.w[3];
		t.ipv4.sport = be16(p->local_port), t.ipv4.dport = be16(p->remote_port);
	}
	struct bpf_sock *sk = socket_of(skb, &t, size, BPF_F_CURRENT_NETNS, 0);
	if (sk) {
		if (sk->state != SOCK_LISTEN && !(sk->state == SOCK_TIME_WAIT && p->tcp_flags & SYN))
			goto assign;
		socket_put(sk);
	}
	if (p->v6) {
		for (int i = 0; i < 4; i++)
			t.ipv6.daddr[i] = config.gateway6.w[i];
		t.ipv6.dport = be16(config.proxy_port);
	} else {
		t.ipv4.daddr = config.gateway4.w[3];
		t.ipv4.dport = be16(config.proxy_port);
	}
	sk = socket_of(skb, &t, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return R_NO_PROXY;
	if (sk->state != SOCK_LISTEN) {
		socket_put(sk);
		return R_NO_PROXY;
	}
assign:;
	long err = socket_assign(skb, sk, 0);
	socket_put(sk);
	if (err)
		return R_NO_PROXY;
	skb->mark = config.proxy_mark;
	return R_NONE;
}

// admit decides on a packet of a flow that the sandbox opened, or opens: R_NONE, or why not.
CALL int admit(struct place *at, struct packet *p, struct flow *f, int outward)
{
	if (!at || !p)
		return R_MALFORMED;
	struct ask a = {.token = at->token, .policy = at->policy, .remote = p->remote, .port = p->remote_port, .protocol = p->protocol};
	int verdict = peer(at->slot, &p->remote) ? ALLOW : decide(&a);
	// What has begun directly cannot be handed to the proxy half way, nor the reverse.
	if (f && alive(f, now_ns()) && verdict != f->verdict)
		verdict = DENY;
	if (verdict == DENY || verdict > PROXY)
		return f ? R_CUT : a.reason ? a.reason : R_POLICY;
	if (f) {
		f->token = at->token;
		return R_NONE;
	}
	if (!outward || p->related)
		return R_INBOUND;
	struct slot *s = at->slot;
	if (!s)
		return R_MALFORMED;
	struct opening o = {.slot = at->n, .lease = s->lease, .token = at->token, .max = s->max_flows, .verdict = verdict};
	return open(at->state, p, &o);
}

INLINE void forget(struct place *at, struct packet *p, struct flow *f)
{
	struct flow_key k;
	fill_key(&k, p, at->slot->lease);
	not_live(at->state, f);
	map_delete(&flows, &k);
}

SEC("tc")
int from_sandbox(struct __sk_buff *skb)
{
	__u32 port = skb->ifindex;
	struct place at = {};
	__u32 *n = map_get(&ports, &port);
	if (!n || !*n || !find(&at, *n - 1))
		return DROP;
	struct packet p = {};
	struct slot *s = at.slot;
	struct state *st = at.state;
	struct ethernet e;
	if (GET(skb, 0, &e))
		return DROP;
	int reason = R_SOURCE;
	for (int i = 0; i < 6; i++)
		if (e.from[i] != s->mac[i])
			return refuse(skb, &at, &p, reason);
	reason = R_PROTOCOL;
	if (skb->vlan_present)
		return refuse(skb, &at, &p, reason);
	if (skb->protocol == be16(ETH_ARP)) {
		p.neighbour = 1;
		reason = who_has(skb, s);
		return reason ? refuse(skb, &at, &p, reason) : back(skb);
	}
	if (skb->protocol != be16(ETH_IPV4) && skb->protocol != be16(ETH_IPV6))
		return refuse(skb, &at, &p, reason);
	reason = parse(skb, &p, 1);
	// A pair of interfaces sees to this by itself, a tap does not: the router would cut such a frame into fragments.
	if (!skb->gso_size && skb->len > ETH_LEN + config.mtu)
		return refuse(skb, &at, &p, R_MALFORMED);
	if (p.multicast && !p.neighbour)
		return refuse(skb, &at, &p, R_MULTICAST);
	if (reason)
		return refuse(skb, &at, &p, reason);
	if (p.neighbour) {
		reason = solicited(skb, &p, s);
		return reason ? refuse(skb, &at, &p, reason) : back(skb);
	}
	for (int i = 0; i < 6; i++)
		if (e.to[i] != config.gateway_mac[i])
			return refuse(skb, &at, &p, R_NEIGHBOUR);
	if (!same(&p.local, p.v6 ? &s->addr6 : &s->addr4))
		return refuse(skb, &at, &p, R_SOURCE);

	__u64 now = now_ns();
	if (s->out_cost && !spend(&st->out_due, now, s->out_cost * skb->len >> 10, s->burst)) {
		denied(st, R_RATE);
		return DROP;
	}
	if (is_gateway(&p.remote) && !p.related && (p.protocol == UDP || p.protocol == TCP) && p.remote_port == config.dns_port) {
		count(st, 0, now, skb->len, 1);
		skb->mark = config.pass_mark;
		return PASS;
	}
	struct flow_key k;
	fill_key(&k, &p, s->lease);
	struct flow *f = map_get(&flows, &k);
	if (f && (!alive(f, now) || (f->flags & F_CLOSED && p.protocol == TCP && (p.tcp_flags & (SYN | ACK)) == SYN))) {
		forget(&at, &p, f); // another connection with the same ports, or one that has been silent for too long
		f = 0;
	}
	if (is_gateway(&p.remote)) {
		if (!f || !(f->flags & F_INBOUND))
			return refuse(skb, &at, &p, R_FORBIDDEN);
	} else if (!f || f->token != at.token) {
		reason = admit(&at, &p, f, 1);
		if (reason) {
			if (f)
				forget(&at, &p, f);
			return refuse(skb, &at, &p, reason);
		}
		if (!f)
			f = map_get(&flows, &k);
	}
	skb->mark = config.pass_mark;
	if (f && !p.related) {
		count(st, f, now, skb->len, 1);
		progress(st, f, &p, 1);
		if (f->verdict == PROXY) {
			reason = steer(skb, &p);
			if (reason) {
				forget(&at, &p, f);
				return refuse(skb, &at, &p, reason);
			}
		}
	} else {
		count(st, 0, now, skb->len, 1);
		if (!f && p.protocol == TCP)
			return DROP; // a reset of a connection that nobody has
	}
	return PASS;
}

SEC("tc")
int to_sandbox(struct __sk_buff *skb)
{
	if (skb->mark == config.answer_mark)
		return PASS;
	__u32 port = skb->ifindex;
	struct place at = {};
	__u32 *n = map_get(&ports, &port);
	if (!n || !*n || !find(&at, *n - 1))
		return DROP;
	struct slot *s = at.slot;
	struct state *st = at.state;
	struct packet p = {};
	__u32 reason = R_PROTOCOL;
	if (skb->vlan_present || (skb->protocol != be16(ETH_IPV4) && skb->protocol != be16(ETH_IPV6)))
		return DROP;
	reason = parse(skb, &p, 0);
	if (p.multicast || p.neighbour) {
		denied(st, R_MULTICAST);
		return DROP;
	}
	if (!reason && !same(&p.local, p.v6 ? &s->addr6 : &s->addr4))
		reason = R_SOURCE;
	if (reason)
		goto deny;
	__u64 now = now_ns();
	if (s->in_cost && !spend(&st->in_due, now, s->in_cost * skb->len >> 10, s->burst)) {
		denied(st, R_RATE);
		return DROP;
	}
	if (is_gateway(&p.remote) && !p.related && (p.protocol == UDP || p.protocol == TCP) && p.remote_port == config.dns_port) {
		count(st, 0, now, skb->len, 0);
		return PASS;
	}
	struct flow_key k;
	fill_key(&k, &p, s->lease);
	struct flow *f = map_get(&flows, &k);
	if (f && !alive(f, now))
		f = 0;
	reason = R_INBOUND;
	if (is_gateway(&p.remote)) {
		// The node's port proxy is the only one that may open connections to a sandbox.
		if (f && f->flags & F_CLOSED && (p.tcp_flags & (SYN | ACK)) == SYN) {
			forget(&at, &p, f);
			f = 0;
		}
		if (!f) {
			if (p.related || p.protocol != TCP || (p.tcp_flags & (SYN | ACK)) != SYN)
				goto deny;
			struct opening o = {.slot = at.n, .lease = s->lease, .token = at.token, .verdict = ALLOW, .flags = F_INBOUND};
			reason = open(st, &p, &o);
			if (reason)
				goto deny;
			f = map_get(&flows, &k);
		} else if (!(f->flags & F_INBOUND)) {
			goto deny;
		}
	} else {
		if (!f || (f->flags & F_CLOSED && p.protocol == TCP && (p.tcp_flags & (SYN | ACK)) == SYN)) {
			// Members of its private network may open some as well.
			if (p.related || (p.protocol == TCP && (p.tcp_flags & (SYN | ACK)) != SYN) || !peer(s, &p.remote))
				goto deny;
			if (f)
				forget(&at, &p, f);
			struct opening o = {.slot = at.n, .lease = s->lease, .token = at.token, .max = s->max_flows, .verdict = ALLOW, .flags = F_INBOUND};
			reason = open(st, &p, &o);
			if (reason)
				goto deny;
			f = map_get(&flows, &k);
		} else if (f->token != at.token) {
			reason = admit(&at, &p, f, 0);
			if (reason) {
				forget(&at, &p, f);
				goto deny;
			}
		}
	}
	if (!p.related && f) {
		count(st, f, now, skb->len, 0);
		progress(st, f, &p, 0);
	} else {
		count(st, 0, now, skb->len, 0);
	}
	return PASS;
deny:
	denied(st, reason);
	tell(st, &p, at.n, at.token, E_DENIED | reason << 8 | 1 << 16);
	return DROP;
}

// in_pool tells whether an address is a sandbox's.
INLINE int in_pool(const union addr *a)
{
	return ((a->d[0] & config.pool4_mask.d[0]) == config.pool4.d[0] && (a->d[1] & config.pool4_mask.d[1]) == config.pool4.d[1]) ||
	       ((a->d[0] & config.pool6_mask.d[0]) == config.pool6.d[0] && (a->d[1] & config.pool6_mask.d[1]) == config.pool6.d[1]);
}

// On the uplink sandboxes' addresses are never seen, in either direction: the router translates them.
INLINE int stray(struct __sk_buff *skb)
{
	union addr from, to;
	if (skb->protocol == be16(ETH_IPV4)) {
		struct ipv4 ip;
		if (GET(skb, ETH_LEN, &ip))
			return 1;
		map_v4(&from, ip.from);
		map_v4(&to, ip.to);
	} else if (skb->protocol == be16(ETH_IPV6)) {
		struct ipv6 ip;
		if (GET(skb, ETH_LEN, &ip))
			return 1;
		from = ip.from, to = ip.to;
	} else {
		return 0;
	}
	return in_pool(&from) || in_pool(&to);
}

SEC("tc")
int from_uplink(struct __sk_buff *skb)
{
	return stray(skb) ? DROP : -1;
}

SEC("tc")
int to_uplink(struct __sk_buff *skb)
{
	return stray(skb) ? DROP : -1;
}

// early is the answer that connect and sendto get: 1 go on, 0 EPERM. Sockets of other network namespaces than
// the sandbox's own are left to the veth's programs: nothing reaches the outside but through it.
INLINE int early(void *ctx, const union addr *to, __u32 port, __u32 protocol)
{
	__u64 space = netns_of(ctx);
	struct place at = {};
	__u32 *n = map_get(&spaces, &space);
	if (!n || !find(&at, *n))
		return 1;
	if (mapped(to) ? (be32(to->w[3]) >> 24 == 127 || to->w[3] == 0) : (to->d[0] == 0 && be32(to->w[2]) == 0 && be32(to->w[3]) <= 1))
		return 1; // loopback
	if (same(to, &at.slot->addr4) || same(to, &at.slot->addr6))
		return 1;
	if (protocol != TCP && protocol != UDP && protocol != ICMP && protocol != ICMPV6)
		return 1;
	if (is_gateway(to) && port == config.dns_port)
		return 1;
	struct ask a = {.token = at.token, .policy = at.policy, .remote = *to, .port = port, .protocol = protocol == ICMPV6 ? ICMP : protocol};
	if (peer(at.slot, to) || decide(&a) != DENY)
		return 1;
	denied(at.state, a.reason);
	struct packet p = {.remote = *to, .remote_port = port, .protocol = a.protocol};
	tell(at.state, &p, at.n, at.token, E_DENIED | a.reason << 8);
	return 0;
}

INLINE int early4(struct bpf_sock_addr *ctx)
{
	union addr to;
	map_v4(&to, ctx->user_ip4);
	return early(ctx, &to, be16((__u16)ctx->user_port), ctx->protocol);
}

INLINE int early6(struct bpf_sock_addr *ctx)
{
	union addr to;
	to.w[0] = ctx->user_ip6[0], to.w[1] = ctx->user_ip6[1], to.w[2] = ctx->user_ip6[2], to.w[3] = ctx->user_ip6[3];
	return early(ctx, &to, be16((__u16)ctx->user_port), ctx->protocol);
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	return early4(ctx);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	return early6(ctx);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	return early4(ctx);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	return early6(ctx);
}
