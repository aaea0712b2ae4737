// Package cell runs function calls: short, stateless programs, each in a cell of its own.
//
// One worker process serves one runtime. Its root is the runtime's environment, read-only; the host's tree is gone
// from its view. It keeps slots, and makes a cell in each of them ahead of the call:
//
//	slot   a thread (package nursery), a user id, control groups, and a network namespace with nothing in it;
//	       kept from call to call, for none of it remembers anything of a program that has ended
//	cell   the first process of new pid, mount and IPC namespaces, with a tmpfs of its own at /call and a /proc;
//	       made for one call, and never used again
//
// A cell's first process shares the worker's memory and runs a script of system calls, without any Go code: it makes
// the mounts, says that it is ready, and waits. A call writes its arguments into the script and its files into the
// tmpfs, and lets it go on: it forks once more, and that child joins the slot's limits, drops everything that the
// program must not have, and executes it. When the program ends, so does the first process, and the kernel kills
// whatever else is in the pid namespace before the end is seen here. Taking the mounts down again happens on the slot's
// thread, ahead of making the next cell.
//
// The program runs under an id of the host that is nobody's, without capabilities, new privileges or sockets other
// than Unix ones. The first process stays outside of the memory limit: the kernel's memory killer takes all processes
// that share a victim's memory, and this one shares the worker's.
//
// The worker trusts what the edge asks for and nothing that a program does. It ends when the edge's socket closes, and
// all cells with it.
package cell
