// What the rules say, the flows that they allowed, limits, and what is told to userland.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packet.h"

struct ask {
	__u32 token, policy;
	union addr remote;
	__u16 port;
	__u8 protocol;
	__u8 reason; // answer: why not
};

INLINE int matches(const struct rule *r, const struct ask *a)
{
	if (r->protocol && r->protocol != a->protocol)
		return 0;
	return a->protocol == ICMP || (a->port >= r->from && a->port <= r->to);
}

// scan is the verdict of a list, or -1. Not static: it is verified once, not at every call.
__attribute__((noinline)) int scan(__u32 list, struct ask *a)
{
	if (!a)
		return -1;
	struct rules *rules = map_get(&lists, &list);
	if (!rules)
		return -1;
	for (int i = 0; i < RULES; i++) {
		if (i >= rules->count)
			break;
		if (matches(&rules->rule[i], a))
			return rules->rule[i].verdict;
	}
	return -1;
}

// decide is the rules' verdict: never-allowed prefixes, then learned addresses, then the longest prefix of the policy
// alone, else deny.
__attribute__((noinline)) int decide(struct ask *a)
{
	if (!a)
		return DENY;
	struct prefix p = {.len = 128, .addr = a->remote};
	int verdict;
	a->reason = R_FORBIDDEN;
	if (map_get(&forbidden, &p))
		return DENY;
	a->reason = R_POLICY;
	struct learned_key k = {.token = a->token, .addr = a->remote};
	struct learned *l = map_get(&learned, &k);
	if (l) {
		__u64 now = now_ns();
		for (int i = 0; i < LEARNED; i++) {
			if (l->until[i] <= now)
				continue;
			verdict = scan(l->list[i], a);
			if (verdict > DENY)
				return verdict;
		}
	}
	void *trie = map_get(&policies, &a->policy);
	if (!trie)
		return DENY;
	__u32 *list = map_get(trie, &p);
	if (!list)
		return DENY;
	verdict = scan(*list, a);
	return verdict > DENY ? verdict : DENY;
}

// peer tells whether an address is that of another member of the sandbox's private network. The address says which slot
// that would be; the slot says whether it is.
CALL int peer(const struct slot *s, const union addr *a)
{
	if (!s || !a || !(s->group[0] | s->group[1]))
		return 0;
	__u32 n = be32(a->w[3]) - be32(mapped(a) ? config.pool4.w[3] : config.pool6.w[3]) - FIRST;
	struct slot *other = map_get(&slots, &n);
	if (!other || other->lease == s->lease || other->group[0] != s->group[0] || other->group[1] != s->group[1])
		return 0;
	return same(a, &other->addr4) || same(a, &other->addr6);
}

// spend takes what a packet costs from a token bucket, kept as the time at which it is full again. Packets that
// race for it may both pass: a bound within a packet or two is enough.
INLINE int spend(__u64 *due, __u64 now, __u64 cost, __u64 burst)
{
	__u64 was = *(volatile __u64 *)due, at = was > now ? was : now;
	at += cost;
	if (at - now > burst)
		return 0;
	__sync_val_compare_and_swap(due, was, at);
	return 1;
}

CALL int tell(struct state *st, struct packet *p, __u32 slot, __u32 token, __u32 what)
{
	__u64 now = now_ns();
	if (!st || !p)
		return 0;
	int opened = (what & 0xff) == E_OPENED;
	// 64 at once, 32 a second.
	if (!spend(opened ? &st->opened_due : &st->denied_due, now, 31250000, 2000000000)) {
		__sync_fetch_and_add(&st->events_lost, 1);
		return 0;
	}
	struct event e = {
		.time = now, .slot = slot, .token = token, .remote = p->remote, .local_port = p->local_port,
		.remote_port = p->remote_port, .protocol = p->protocol, .kind = what & 0xff, .reason = what >> 8 & 0xff, .inbound = what >> 16 & 1,
	};
	// Nobody is woken for what went well: it can wait for the reader to look.
	if (ring_put(&events, &e, sizeof(e), opened ? BPF_RB_NO_WAKEUP : 0))
		__sync_fetch_and_add(&st->events_lost, 1);
	return 0;
}

INLINE void fill_key(struct flow_key *k, const struct packet *p, __u32 lease)
{
	*k = (struct flow_key){.lease = lease, .local_port = p->local_port, .remote_port = p->remote_port, .remote = p->remote, .protocol = p->protocol};
}

// alive: silent flows are evaluated anew, and answers to them no longer let in. An open TCP connection may be
// silent for long.
INLINE int alive(const struct flow *f, __u64 now)
{
	__u64 idle = now - f->last;
	if ((__s64)idle < 0)
		return 1;
	if (f->flags & F_CLOSED)
		return idle < 120000000000;
	if (f->protocol == TCP && (f->in_packets || f->flags & F_INBOUND))
		return idle < 7440000000000;
	return idle < 180000000000; // nobody ever answered, for TCP
}

INLINE void not_live(struct state *st, struct flow *f)
{
	if (f->flags & F_CLOSED)
		return;
	f->flags |= F_CLOSED;
	__sync_fetch_and_sub(&st->live, 1);
}

// progress notes FIN and RST.
INLINE void progress(struct state *st, struct flow *f, const struct packet *p, int outward)
{
	if (p->related || !(p->tcp_flags & (FIN | RST)))
		return;
	if (p->tcp_flags & FIN)
		f->flags |= outward ? F_FIN_OUT : F_FIN_IN;
	if (p->tcp_flags & RST || (f->flags & (F_FIN_OUT | F_FIN_IN)) == (F_FIN_OUT | F_FIN_IN))
		not_live(st, f);
}

INLINE void count(struct state *st, struct flow *f, __u64 now, __u32 len, int outward)
{
	if (outward) {
		__sync_fetch_and_add(&st->out_bytes, len);
		__sync_fetch_and_add(&st->out_packets, 1);
	} else {
		__sync_fetch_and_add(&st->in_bytes, len);
		__sync_fetch_and_add(&st->in_packets, 1);
	}
	if (!f)
		return;
	f->last = now;
	if (outward) {
		__sync_fetch_and_add(&f->out_bytes, len);
		__sync_fetch_and_add(&f->out_packets, 1);
	} else {
		__sync_fetch_and_add(&f->in_bytes, len);
		__sync_fetch_and_add(&f->in_packets, 1);
	}
}

struct opening {
	__u32 slot, lease, token;
	__u32 max;
	__u8 verdict, flags;
};

// open makes a flow. What is not the start of a connection and ends one needs none.
CALL int open(struct state *st, struct packet *p, struct opening *o)
{
	if (!st || !p || !o)
		return R_MALFORMED;
	if (p->tcp_flags & RST)
		return R_NONE;
	__u32 live = __sync_fetch_and_add(&st->live, 1);
	// Only userland knows of flows that have fallen silent: while it is away, the table's own bound must do.
	if (o->max && (__s32)live >= (__s32)o->max && (__s64)(now_ns() - st->swept) < 120000000000) {
		__sync_fetch_and_sub(&st->live, 1);
		return R_FLOWS;
	}
	struct flow_key k;
	fill_key(&k, p, o->lease);
	struct flow f = {.token = o->token, .verdict = o->verdict, .flags = o->flags, .protocol = p->protocol};
	f.first = f.last = now_ns();
	if (map_put(&flows, &k, &f, BPF_NOEXIST)) {
		__sync_fetch_and_sub(&st->live, 1); // another packet of the same flow made it, or the table is full
		return map_get(&flows, &k) ? R_NONE : R_FLOWS;
	}
	tell(st, p, o->slot, o->token, E_OPENED | (o->flags & F_INBOUND) << 16);
	return R_NONE;
}
