// Package wire is the language between an edge and dsec-init: length-framed messages in a compact binary
// form of our own (no reflection, so that dsec-init stays small), over a stream: a Unix socket for
// containers, virtio-serial or vsock for VMs. Every decoder is bounded and fuzzed: to the edge, frames from
// dsec-init are hostile input; to dsec-init nothing is trusted but the peer that the kernel vouches for.
package wire
