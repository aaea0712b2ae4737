// The maps that userland and the programs share. Layouts are mirrored in layout.go; numbers are in host order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernel.h"

enum {
	SLOTS = 16384,
	FIRST = 256, // place of slot 0 in the pools
	PORTS = 32768,
	RULES = 64,  // of one list
	LEARNED = 8, // lists of one learned address
	REASONS = 16,
};

enum verdict { DENY = 0, ALLOW = 1, PROXY = 2 };

// Why something was not let through.
enum reason {
	R_NONE = 0,
	R_POLICY = 1,    // no rule allows it, or one denies it
	R_FORBIDDEN = 2, // never allowed: the node, other sandboxes, link-local, ...
	R_SOURCE = 3,    // an address that is not the sandbox's own
	R_MALFORMED = 4,
	R_FRAGMENT = 5,
	R_PROTOCOL = 6, // neither TCP, UDP nor ICMP echo; IPv6 extension headers; VLAN tags
	R_FLOWS = 7,    // too many connections
	R_INBOUND = 8,  // to the sandbox, and not an answer
	R_RATE = 9,     // over its bandwidth
	R_NO_PROXY = 10,
	R_MULTICAST = 11,
	R_NEIGHBOUR = 12, // ARP or ND for anything but the gateway
	R_CUT = 13,       // was allowed by an older policy
};

// An IPv6 address, or an IPv4 address as ::ffff:a.b.c.d.
union addr {
	__u8 b[16];
	__u16 h[8];
	__u32 w[4];
	__u64 d[2];
};

struct prefix {
	__u32 len;
	union addr addr;
} __attribute__((packed, aligned(4)));

struct rule {
	__u16 from, to; // ports
	__u8 protocol;  // 0: any
	__u8 verdict;
	__u16 pad;
};

// A list of rules. Rules of one protocol do not overlap; what none names is denied.
struct rules {
	__u32 count;
	struct rule rule[RULES];
};

struct learned_key {
	__u32 token;
	union addr addr;
} __attribute__((packed, aligned(4)));

struct learned {
	__u64 until[LEARNED]; // ns of the monotonic clock
	__u32 list[LEARNED];
};

struct flow_key {
	__u32 lease;
	__u16 local_port, remote_port; // ICMP: the echo's id, 0
	union addr remote;
	__u8 protocol; // ICMP for both families
	__u8 pad[3];
} __attribute__((packed, aligned(4)));

enum {
	F_INBOUND = 1, // opened by the node's port proxy
	F_FIN_OUT = 2,
	F_FIN_IN = 4,
	F_CLOSED = 8, // no longer counted
};

struct flow {
	__u64 first, last; // ns of the monotonic clock
	__u64 out_bytes, out_packets, in_bytes, in_packets;
	__u32 token; // what it was allowed under
	__u8 verdict;
	__u8 flags;
	__u8 protocol;
	__u8 pad;
};

// What a slot is: written once before its port is known.
struct slot {
	__u64 out_cost, in_cost; // ns per KiB; 0: no limit
	__u64 burst;             // ns
	union addr addr4, addr6;
	__u32 max_flows;
	__u32 lease; // the slot, and above it a number that no earlier sandbox of this slot had
	__u8 mac[6];
	__u16 pad;
	__u64 group[2]; // the private network that it is a member of; 0: none
};

// What happens to it.
struct state {
	__u64 out_bytes, out_packets, in_bytes, in_packets;
	__u64 out_due, in_due, denied_due, opened_due; // token buckets: when the bucket is full again
	__u64 swept; // when userland last took ended flows off `live`
	__u64 events_lost;
	__u64 denied[REASONS];
	__u32 live; // flows
	__u32 pad;
};

enum { E_DENIED = 1, E_OPENED = 2 };

struct event {
	__u64 time;
	__u32 slot;
	__u32 token;
	union addr remote;
	__u16 local_port, remote_port;
	__u8 protocol, kind, reason, inbound;
};

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, PORTS);
	TYPE(key, __u32);   // interface index of the host end
	TYPE(value, __u32); // slot + 1
} ports SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	NUMBER(max_entries, SLOTS);
	TYPE(key, __u64); // cookie of the sandbox's network namespace
	TYPE(value, __u32);
} spaces SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, SLOTS);
	TYPE(key, __u32);
	TYPE(value, struct slot);
} slots SEC(".maps");

// Userland maps this map's memory as well.
struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(map_flags, BPF_F_MMAPABLE);
	NUMBER(max_entries, SLOTS);
	TYPE(key, __u32);
	TYPE(value, struct state);
} states SEC(".maps");

// What userland needs to know again after a restart; the programs do not read it.
struct record {
	__u64 generation[2]; // of the policy, and of the one that is being set
	__u32 token[2];
	__u64 space; // cookie
	__u32 port;  // 0: the slot is free
	__u32 lease;
};

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, SLOTS);
	TYPE(key, __u32);
	TYPE(value, struct record);
} records SEC(".maps");

// token << 32 | policy: one word, so that a change is one store by userland, which maps this map's memory.
struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(map_flags, BPF_F_MMAPABLE);
	NUMBER(max_entries, SLOTS);
	TYPE(key, __u32);
	TYPE(value, __u64);
} current SEC(".maps");

// Lists by number. Many prefixes of many policies share one.
struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	NUMBER(map_flags, BPF_F_NO_PREALLOC);
	NUMBER(max_entries, 65536);
	TYPE(key, __u32);
	TYPE(value, struct rules);
} lists SEC(".maps");

// Policies by number: tries of prefixes. Slots with the same rules share one.
struct {
	NUMBER(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	NUMBER(max_entries, 2 * SLOTS);
	TYPE(key, __u32);
	NUMBER(value_size, 4);
	VALUES(values, struct {
		NUMBER(type, BPF_MAP_TYPE_LPM_TRIE);
		NUMBER(map_flags, BPF_F_NO_PREALLOC);
		NUMBER(max_entries, 1);
		NUMBER(key_size, sizeof(struct prefix)); // clang forgets the types of inner maps
		NUMBER(value_size, sizeof(__u32)); // list
	});
} policies SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_LPM_TRIE);
	NUMBER(map_flags, BPF_F_NO_PREALLOC);
	NUMBER(max_entries, 65536);
	TYPE(key, struct prefix);
	TYPE(value, __u32);
} forbidden SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	NUMBER(map_flags, BPF_F_NO_PREALLOC);
	NUMBER(max_entries, 262144);
	TYPE(key, struct learned_key);
	TYPE(value, struct learned);
} learned SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_LRU_HASH);
	NUMBER(max_entries, 131072);
	TYPE(key, struct flow_key);
	TYPE(value, struct flow);
} flows SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_RINGBUF);
	NUMBER(max_entries, 1048576);
} events SEC(".maps");

// Set before loading.
struct config {
	union addr gateway4, gateway6;
	union addr pool4, pool4_mask, pool6, pool6_mask; // what sandboxes' addresses lie in
	__u32 proxy_mark;           // routes a packet to the proxy's socket
	__u32 answer_mark;          // what these programs answer themselves
	__u32 pass_mark;            // the router forwards and takes nothing from sandboxes without it
	__u16 proxy_port, dns_port;
	__u8 gateway_mac[6];
	__u16 mtu; // of sandboxes' links
	__u8 pad[4];
};

const volatile struct config config = {};
