// Package fuse serves a flat, read-only directory of files over /dev/fuse, by a loop of its own.
//
// It does what a lazily read layer needs and no more: one directory, files of a known size that never change, and
// reads. What it adds to that is that a connection outlives its server. [New] makes the mount and answers the
// kernel's INIT; both descriptors go to a process that keeps them. Whoever serves next takes the device from there
// and calls [Serve], which asks the kernel to send again what its predecessor had taken and not answered
// (FUSE_NOTIFY_RESEND, Linux 6.9). Readers wait meanwhile. So that this works, nothing may be remembered about a
// connection: a file's node id is computed from its name, and there are no handles.
//
// The device must be one open file, shared, and never cloned: the kernel fails all requests in progress on a
// descriptor that is closed for good.
package fuse
