// Command foundation measures what the foundation promises, beside floors and peers in the same run: creating
// a sandbox up to its first command's result, running a command, what an idle sandbox costs, and that nothing
// is left behind.
//
// Floors: fork+exec of the same program on the host; the same behind one HTTP request. Peers: runc run,
// runc exec, bubblewrap, and containerd's ctr run, over the same root file system.
package main
