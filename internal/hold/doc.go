// Package hold keeps descriptors alive: the process `dsec hold` does nothing else. An edge puts into it what
// must outlive the edge (the mount of the writable-layer pool, mounts of layers that sandboxes share) and its
// successor takes them from it by name.
//
// The protocol is one request a message over a SOCK_SEQPACKET socket: "put NAME" with one descriptor, "get NAME"
// answered with one, "del NAME", "list", and "lease MILLIS NAME", by which a descriptor's user promises to come back within that time;
// what is done when it does not is the holder's program's choice (Options). Its only file is a lock beside the
// socket, so that one process at most holds for it; it trusts its peers, which the socket's
// directory (0700) limits to root.
package hold
