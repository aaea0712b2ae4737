// What this program needs of the kernel's interface: helpers by number, macros of map declarations, byte order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define CALL static __attribute__((noinline))

// Map declarations are read from the object's type information: a number is the length of an array type.
#define NUMBER(name, n) int(*name)[n]
#define TYPE(name, t) typeof(t) *name
#define VALUES(name, t) typeof(t) *name[]

static void *(*map_get)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*map_put)(void *map, const void *key, const void *value, __u64 flags) = (void *)BPF_FUNC_map_update_elem;
static long (*map_delete)(void *map, const void *key) = (void *)BPF_FUNC_map_delete_elem;
// Coarse: a few milliseconds are near enough for all that it is used for, and it costs next to nothing.
static __u64 (*now_ns)(void) = (void *)BPF_FUNC_ktime_get_coarse_ns;
static long (*skb_load)(const void *skb, __u32 offset, void *to, __u32 len) = (void *)BPF_FUNC_skb_load_bytes;
static long (*skb_store)(void *skb, __u32 offset, const void *from, __u32 len, __u64 flags) = (void *)BPF_FUNC_skb_store_bytes;
static long (*skb_resize)(void *skb, __u32 len, __u64 flags) = (void *)BPF_FUNC_skb_change_tail;
static long (*redirect)(__u32 ifindex, __u64 flags) = (void *)BPF_FUNC_redirect;
static __s64 (*csum_add)(const void *from, __u32 from_size, const void *to, __u32 to_size, __u32 seed) = (void *)BPF_FUNC_csum_diff;
static struct bpf_sock *(*socket_of)(void *ctx, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns, __u64 flags) = (void *)BPF_FUNC_skc_lookup_tcp;
static long (*socket_put)(void *sock) = (void *)BPF_FUNC_sk_release;
static long (*socket_assign)(void *ctx, void *sock, __u64 flags) = (void *)BPF_FUNC_sk_assign;
static long (*ring_put)(void *ring, void *data, __u64 size, __u64 flags) = (void *)BPF_FUNC_ringbuf_output;
static __u64 (*netns_of)(void *ctx) = (void *)BPF_FUNC_get_netns_cookie;

#define be16(x) __builtin_bswap16(x)
#define be32(x) __builtin_bswap32(x)

enum {
	ETH_IPV4 = 0x0800,
	ETH_ARP = 0x0806,
	ETH_IPV6 = 0x86dd,
	ETH_LEN = 14,

	ICMP = 1,
	TCP = 6,
	UDP = 17,
	ICMPV6 = 58,

	FIN = 1,
	SYN = 2,
	RST = 4,
	ACK = 16,

	SOCK_TIME_WAIT = 6,
	SOCK_LISTEN = 10,

	PASS = 0,
	DROP = 2,
};
