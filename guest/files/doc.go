// Package files performs the platform's file operations inside a sandbox, as dsec-init's own work: no program of
// the sandbox runs for them.
//
// The caller is a thread inside the sandbox's root that has taken on a user's identity (Become), so that the
// kernel decides what the user may do. Everything in the sandbox is hostile: names, links, types. Hence
//
//   - every path is opened by openat2 without magic links, the doors in /proc that lead to what a process has
//     open (dsec-init's own descriptors among them);
//   - nothing of /proc is read or listed: dsec-init's own memory and descriptors are there, and to itself
//     dsec-init is not protected;
//   - only regular files are read and written, so that a FIFO, a terminal or a device never blocks a thread;
//   - what is written appears at once and whole, by a rename;
//   - an archive is unpacked beneath its directory, whatever its names and links say.
//
// Errors are *wire.Error.
package files
