package nursery

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// op is one step; the interpreter knows the offsets.
type op struct {
	nr     uint32
	flags  uint32
	args   [6]uintptr
	result int64
}

// Flags of a step.
const (
	May    = 1 // its failure does not end the script
	fork   = 2
	nested = 4 // of a fork: the parent goes on, behind the child's steps
)

// Script is an array of system calls and the memory that their arguments point to.
type Script struct {
	ops    []op // in mem
	mem    []byte
	used   int  // bytes of mem that hold arguments
	mapped bool // mem is the script's own mapping
	n      *Nursery
	pid    int
	pidfd  *int32 // in mem
	failed int
}

// NewScript returns an empty script with room for steps steps and size bytes of arguments, alignment included.
func (n *Nursery) NewScript(steps, size int) (*Script, error) {
	s := &Script{n: n, failed: -1}
	opBytes := steps * int(unsafe.Sizeof(op{}))
	if opBytes+size <= len(n.arena) && n.script == nil {
		s.mem = n.arena
	} else {
		mem, err := unix.Mmap(-1, 0, opBytes+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return nil, err
		}
		s.mem, s.mapped = mem, true
	}
	s.ops = unsafe.Slice((*op)(unsafe.Pointer(&s.mem[0])), steps)[:0]
	s.used = opBytes
	return s, nil
}

// Free returns the memory.
func (s *Script) Free() {
	if s.mapped {
		unix.Munmap(s.mem)
	}
	s.ops, s.mem, s.pidfd = nil, nil, nil
}

// Do appends a step and returns its index.
func (s *Script) Do(flags uint32, nr int, args ...uintptr) int {
	s.ops = s.ops[:len(s.ops)+1] // beyond what was asked for = a bug, panics
	o := &s.ops[len(s.ops)-1]
	*o = op{nr: uint32(nr), flags: flags}
	copy(o.args[:], args)
	return len(s.ops) - 1
}

// Fork appends the fork: what follows is done by the child, which shares dsec-init's memory until it execs.
func (s *Script) Fork() int {
	flags := unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_PARENT_SETTID | int(unix.SIGCHLD)
	return s.Do(fork, unix.SYS_CLONE, uintptr(flags), 0, uintptr(unsafe.Pointer(&s.n.st.pid)), 0, 0)
}

// cloneArgs is the kernel's struct clone_args.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// Clone appends a fork like Fork's whose child begins in new namespaces (flags, CLONE_NEW*) and in a v2 control group,
// with default signal actions. PIDFD tells its descriptor afterwards.
func (s *Script) Clone(flags uint64, cgroup int) int {
	fd := s.Bytes(make([]byte, 8))
	s.pidfd = (*int32)(unsafe.Pointer(&s.mem[fd-uintptr(unsafe.Pointer(&s.mem[0]))]))
	*s.pidfd = -1
	args := cloneArgs{
		flags: flags | unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_PARENT_SETTID | unix.CLONE_PIDFD |
			unix.CLONE_INTO_CGROUP | unix.CLONE_CLEAR_SIGHAND,
		pidfd: uint64(fd), parentTID: uint64(uintptr(unsafe.Pointer(&s.n.st.pid))), exitSignal: uint64(unix.SIGCHLD), cgroup: uint64(cgroup),
	}
	const size = int(unsafe.Sizeof(args))
	return s.Do(fork, unix.SYS_CLONE3, s.Bytes((*[size]byte)(unsafe.Pointer(&args))[:]), uintptr(size))
}

// CloneNested appends a fork by the script's child: what follows up to the step that Resume marks is done by the child's
// child, which begins in a v2 control group, and what follows Resume by the child, once the other has executed or ended.
func (s *Script) CloneNested(cgroup int) int {
	args := cloneArgs{
		flags:      unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_INTO_CGROUP | unix.CLONE_CLEAR_SIGHAND,
		exitSignal: uint64(unix.SIGCHLD), cgroup: uint64(cgroup),
	}
	const size = int(unsafe.Sizeof(args))
	return s.Do(fork|nested, unix.SYS_CLONE3, s.Bytes((*[size]byte)(unsafe.Pointer(&args))[:]), uintptr(size))
}

// Resume says that the parent of a nested fork goes on with the next step that is appended.
func (s *Script) Resume(clone int) {
	s.ops[clone].args[5] = uintptr(len(s.ops)-clone) * unsafe.Sizeof(op{})
}

// Set changes an argument of a step that has not been reached yet.
func (s *Script) Set(step, arg int, v uintptr) { s.ops[step].args[arg] = v }

// SetCall changes all of a step that has not been reached yet.
func (s *Script) SetCall(step, nr int, args ...uintptr) {
	s.ops[step].nr = uint32(nr)
	copy(s.ops[step].args[:], args)
}

// Value is what a step returned.
func (s *Script) Value(step int) int64 { return s.ops[step].result }

// Memory is n bytes of the script's memory at an address that Bytes returned.
func (s *Script) Memory(addr uintptr, n int) []byte {
	return s.mem[addr-uintptr(unsafe.Pointer(&s.mem[0])):][:n]
}

// Room is how many bytes of arguments there is room for.
func (s *Script) Room() int { return len(s.mem) - s.used }

// PIDFD is the descriptor of the child that Clone made, -1 if there is none.
func (s *Script) PIDFD() int {
	if s.pidfd == nil {
		return -1
	}
	return int(*s.pidfd)
}

// Bytes copies b into the script's memory, 8-byte aligned, and returns its address there.
func (s *Script) Bytes(b []byte) uintptr {
	s.used = (s.used + 7) &^ 7
	at := s.mem[s.used:][:len(b)]
	copy(at, b)
	s.used += len(b)
	if len(b) == 0 {
		return 0
	}
	return uintptr(unsafe.Pointer(&at[0]))
}

// String copies a string and a NUL.
func (s *Script) String(v string) uintptr {
	at := s.mem[s.used:][:len(v)+1]
	copy(at, v)
	at[len(v)] = 0
	s.used += len(v) + 1
	return uintptr(unsafe.Pointer(&at[0]))
}

// Strings copies a list of strings as execve wants it.
func (s *Script) Strings(l []string) uintptr {
	s.used = (s.used + 7) &^ 7
	ptrs := unsafe.Slice((*uintptr)(unsafe.Pointer(&s.mem[s.used:][:8*(len(l)+1)][0])), len(l)+1)
	s.used += 8 * (len(l) + 1)
	for i, v := range l {
		ptrs[i] = s.String(v)
	}
	ptrs[len(l)] = 0
	return uintptr(unsafe.Pointer(&ptrs[0]))
}

// StringsSize is the memory that Strings needs.
func StringsSize(l []string) int {
	n := 16 + 8*len(l)
	for _, v := range l {
		n += len(v) + 1
	}
	return n
}

// PID of the forked child.
func (s *Script) PID() int { return s.pid }

// Failed returns the index and the error of the step that ended the script early, or -1 and nil.
func (s *Script) Failed() (int, error) {
	if s.failed < 0 {
		return -1, nil
	}
	return s.failed, s.Err(s.failed)
}

// Err is the error of one step, nil if it succeeded or did not run.
func (s *Script) Err(i int) error {
	if r := s.ops[i].result; r < 0 && r > -4096 {
		return unix.Errno(-r)
	}
	return nil
}
