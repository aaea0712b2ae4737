// Package initd is dsec-init: PID 1 of a sandbox. It prepares a warm shell, takes on its environment when it is
// claimed, starts the commands that an edge asks for, keeps their output until the edge has it, and performs
// file operations. It is the edge's hand inside and defends itself against root there.
//
// # Spawn contract (containers)
//
// The spawner executes
//
//	dsec-init container -stage DIR [-tasks FD,FD,...] [-seccomp FD] [-group FD] [-apparmor NAME]
//
// with Environ() as its environment, in new user, mount, pid, net, uts, ipc and cgroup namespaces, as uid and gid 0
// of the user namespace with every capability in it, with the host's mounts still in view, / as working directory.
// Args builds the arguments. Descriptors:
//
//	0, 1  /dev/null
//	2     where the one line goes that tells why dsec-init had to end
//	3     a listening Unix stream socket, bound to a path on the host
//	tasks cgroup v1 tasks files, open for writing: the groups that commands, not dsec-init, are to be in
//	group cgroup.procs of a v2 group, open for writing: dsec-init makes the groups it was born in (and the v1 ones)
//	      the root of a new control-group namespace, moves there, and mounts the v2 tree read-only
//	seccomp  an array of struct sock_filter, at most 4096, read to its end; installed on commands
//
// DIR is an empty directory that uid 0 of the namespace can reach; a file system is mounted there in the new mount
// namespace and nothing is left in it. The binary is owned by the host's root and its mode is 0711: executed, but not
// readable from the user namespace, so that the process belongs to the host's namespace for ptrace and /proc. A
// spawner that wants another oom_score_adj sets it before the exec (afterwards it is not dsec-init's to change);
// commands inherit it.
//
// It is ready when it answers Hello. An error before that ends it with the line on descriptor 2 and code 1.
//
// The filter must allow what precedes the exec: clone, setsid, write, dup2, fcntl, ioctl(TIOCSCTTY), close_range,
// rt_sigaction, rt_sigprocmask, umask, prlimit64, prctl, setgroups, setresgid, setresuid, chdir, execve, exit,
// futex. It is installed with CAP_SYS_ADMIN in the user namespace, with or without no_new_privs.
//
// # Whole systems
//
// The agent of a full virtual machine (package guest/machine) executes
//
//	dsec-init system
//
// in no new namespaces, with descriptors 0 to 3 as above. It works in the system as it is: commands see all of it and have
// every capability, the claim carries no mount, and orphans of commands are its own (a child subreaper). Only its parent may
// connect. Whoever is root in the system can end it, which ends the sandbox as anywhere.
//
// # Claim
//
// The claim carries the descriptor of a detached mount, made by the host, with nodev set. dsec-init attaches it
// (move_mount), moves its /proc, /sys and /dev beneath, makes /etc and /tmp if they are missing, and pivots. What
// belongs into /etc the host has put into the upper layer before. A claim that fails leaves a shell of no use.
//
// # Threads and memory
//
// One goroutine, the loop, owns everything and never blocks; watchers and timers call into it. File operations run
// on worker threads made on demand. Commands are forked by the nursery (package nursery). Output, streams and
// scripts lie in mappings of their own that exist while they hold something; the Go heap stays below a megabyte.
//
// # Bounds
//
// 1,024 live commands, 4,096 not yet released, 128 sessions, 256 KiB of output held for a command and 16 MiB in all
// (a full buffer makes the writer wait), 16 file transfers and 256 ports at once, 1,024 watches of
// 8,192 directories in all with 16 KiB of events waiting for each, 512 KiB of input that a command
// does not read.
//
// # Defence
//
// Every signal but SIGCHLD has its default action, so that the kernel discards what is sent from inside; the
// process is not dumpable; commands inherit no descriptor; the channel's peers must be outside the pid namespace;
// no path of the sandbox is followed through /proc's magic links, nothing below /proc is read for the edge, and
// nothing of the sandbox is executed but what the edge asked for.
package initd
