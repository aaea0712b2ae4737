// Package wire is the language between an edge and dsec-init: length-framed messages in a compact binary
// form of our own (no reflection, so that dsec-init stays small), over a stream: a Unix socket for
// containers, virtio-serial or vsock for VMs. Every decoder is bounded and fuzzed: to the edge, frames from
// dsec-init are hostile input; to dsec-init nothing is trusted but the peer that the kernel vouches for.
//
// # Frame
//
//	uint32 length of what follows it, little endian, HeaderRest to MaxFrame
//	uint8  kind
//	uint8  number of descriptors that travel beside the frame (SCM_RIGHTS, in order)
//	uint16 reserved, 0
//	uint32 id: of the request that is asked or answered, or of the stream
//	...    payload
//
// In payloads integers are uvarints (signed ones zigzag), strings and lists are preceded by their length.
//
// # Conversation
//
// The edge speaks first: Hello (its epoch). The answer is Reply, or Fail and the end of the connection. After
// that every request has an id that the edge chooses and gets exactly one Reply or Fail, in any order.
//
// Descriptors: Claim carries one, the root's detached mount. Start (of a command outside a session) and
// OpenSession carry none or the command's control group: cgroup.procs, then cgroup.kill, both open for writing.
//
// Output and Exited are sent by dsec-init unasked, for the commands that this connection has started or
// resumed; Ack and Release answer them and get no reply.
//
// # Streams
//
// OpenRead, OpenWrite, OpenTar, Unpack and Dial open a stream with their request's id. Each direction carries
// Data frames (at most MaxData bytes) within a window of Window bytes that the receiver extends by Credit, and
// closes with End. Reading ends with dsec-init's End, which carries an error or none. A writer's End means
// commit, and dsec-init's End tells how that went. Reset by the edge abandons the stream at once; what still
// arrives for it is ignored. Windows bound what a slow reader can make the other side hold.
package wire
