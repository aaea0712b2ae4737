package cell

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/nursery"
)

// state of a slot.
type state byte

const (
	making state = iota // the thread makes a cell
	ready               // it waits for a call
	taken               // a call runs in it
	ended               // the call is over, the thread is not through yet
	broken              // a cell could not be made; tried again later
)

// slot is one place for calls.
type slot struct {
	w       *worker
	n       int
	uid     uintptr
	state   state
	nursery *nursery.Nursery
	group   *group
	made    int // eventfd: the cell is made
	start   int // eventfd: the call may begin
	fails   int // in a row

	// Of the cell.
	script      *nursery.Script
	pidfd       int
	dir, mounts int // its tmpfs, and what keeps its mount namespace
	out, err    [2]int
	size        Limits // what its tmpfs was made for
	wait        uintptr
	usage       uintptr
	step        steps
	idle        bool // the thread is through with the cell
	call        *running
	cleanDir    int // of the cell before, closed by the thread
	cleanMounts int
	names       map[int]string
}

// steps are the indices of what a call changes or reads in the script.
type steps struct {
	clone, dir, mounts, stdin, exec int
	file, nofile, stack, cpu        int
	first                           int // of the program's own part
}

// scriptBytes is the room for a cell's script: its filter, and a call's arguments.
const scriptBytes = 27 << 10

// MaxArgs is how many bytes a call's arguments and environment may have together, pointers included.
const MaxArgs = 16 << 10

func (w *worker) newSlot(n int) (*slot, error) {
	s := &slot{w: w, n: n, uid: uintptr(w.cfg.UIDBase) + uintptr(n), pidfd: -1, dir: -1, mounts: -1, cleanDir: -1, cleanMounts: -1}
	for _, fd := range []*int{&s.out[0], &s.out[1], &s.err[0], &s.err[1]} {
		*fd = -1
	}
	var err error
	if s.group, err = w.roots.newGroup("s" + strconv.Itoa(n)); err != nil {
		return nil, err
	}
	if s.made, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, err
	}
	if s.start, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, err
	}
	if s.nursery, err = nursery.New(); err != nil {
		return nil, err
	}
	if err := s.ownNamespaces(); err != nil {
		return nil, err
	}
	for kind, fd := range map[kind]int{slotMade: s.made, slotThrough: s.nursery.FD()} {
		if err := w.watch(fd, kind, n); err != nil {
			return nil, err
		}
	}
	s.size = w.expect
	return s, s.prepare()
}

// ownNamespaces gives the thread a network without interfaces that are up and a name, which its cells inherit, and puts
// it into the group that shares the processor out.
func (s *slot) ownNamespaces() error {
	sc, err := s.nursery.NewScript(4, 64)
	if err != nil {
		return err
	}
	defer sc.Free()
	if s.group.cpu >= 0 {
		sc.Do(0, unix.SYS_WRITE, uintptr(s.group.cpu), sc.String("0"), 1)
	}
	sc.Do(0, unix.SYS_UNSHARE, unix.CLONE_NEWNET|unix.CLONE_NEWUTS)
	sc.Do(0, unix.SYS_SETHOSTNAME, sc.String("call"), 4)
	return wrap("make a slot's namespaces", s.nursery.RunWait(sc))
}

// prepare makes the next cell, having cleaned up after the one before.
func (s *slot) prepare() error {
	for _, p := range []*[2]int{&s.out, &s.err} {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		if err := unix.SetNonblock(fds[0], true); err != nil {
			return err
		}
		// Its program may open /dev/stdout and its like again.
		if err := unix.Fchown(fds[1], int(s.uid), -1); err != nil {
			return err
		}
		*p = fds
	}
	sc, err := s.nursery.NewScript(64, scriptBytes)
	if err != nil {
		return err
	}
	s.script, s.names = sc, map[int]string{}
	s.write(sc)
	s.state, s.idle = making, false
	s.nursery.Run(sc)
	return nil
}

// write writes the script of a cell.
func (s *slot) write(sc *nursery.Script) {
	do := func(name string, nr int, args ...uintptr) int {
		n := sc.Do(0, nr, args...)
		s.names[n] = name
		return n
	}
	may := func(nr int, args ...uintptr) { sc.Do(nursery.May, nr, args...) }
	one := sc.Bytes([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	zero := sc.String("0")
	str := sc.String

	// The slot's thread.
	if s.cleanMounts >= 0 {
		may(unix.SYS_CLOSE, uintptr(s.cleanDir))
		may(unix.SYS_CLOSE, uintptr(s.cleanMounts))
		s.cleanDir, s.cleanMounts = -1, -1
	}
	s.step.clone = sc.Clone(unix.CLONE_NEWPID|unix.CLONE_NEWNS|unix.CLONE_NEWIPC|unix.CLONE_FILES, s.w.roots.init)
	s.names[s.step.clone] = "clone"

	// The cell's first process.
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	do("end with the worker", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL))
	do("mount files", unix.SYS_MOUNT, str("call"), str(callDir), str("tmpfs"), flags, str(tmpfsOptions(&s.size)))
	for _, d := range []struct {
		path string
		mode uintptr
	}{{callDir + "/work", 0o755}, {callDir + "/tmp", 0o1777}, {callDir + "/shm", 0o1777}} {
		path := str(d.path)
		do("make "+d.path, unix.SYS_MKDIR, path, d.mode)
		do("give "+d.path, unix.SYS_CHOWN, path, s.uid, s.uid)
	}
	do("mount proc", unix.SYS_MOUNT, str("proc"), str("/proc"), str("proc"), flags|unix.MS_NOEXEC, str("subset=pid,hidepid=2"))
	s.step.dir = do("open files", unix.SYS_OPEN, str(callDir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
	s.step.mounts = do("hold mounts", unix.SYS_OPEN, str("/proc/self/ns/mnt"), unix.O_RDONLY|unix.O_CLOEXEC)
	do("say so", unix.SYS_WRITE, uintptr(s.made), one, 8)
	do("wait for a call", unix.SYS_READ, uintptr(s.start), sc.Bytes(make([]byte, 8)), 8)
	nested := sc.CloneNested(s.group.dir)
	s.names[nested] = "fork"

	// The program, before it is one.
	s.step.first = nested + 1
	for _, fd := range []int{s.group.memory, s.group.pids} {
		if fd >= 0 {
			do("join limits", unix.SYS_WRITE, uintptr(fd), zero, 1)
		}
	}
	s.step.stdin = do("place stdin", unix.SYS_DUP2, uintptr(s.w.null), 0)
	do("place stdout", unix.SYS_DUP2, uintptr(s.out[1]), 1)
	do("place stderr", unix.SYS_DUP2, uintptr(s.err[1]), 2)
	do("close the others", unix.SYS_CLOSE_RANGE, 3, 1<<32-1, unix.CLOSE_RANGE_CLOEXEC)
	limit := func(what int) int { return do("limit resources", unix.SYS_SETRLIMIT, uintptr(what), 0) }
	s.step.file, s.step.nofile = limit(unix.RLIMIT_FSIZE), limit(unix.RLIMIT_NOFILE)
	s.step.stack, s.step.cpu = limit(unix.RLIMIT_STACK), limit(unix.RLIMIT_CPU)
	// Where the node hands cores to a program of its own, a crash would leave something there.
	do("limit cores", unix.SYS_SETRLIMIT, unix.RLIMIT_CORE, sc.Bytes(make([]byte, 16)))
	do("lead a session", unix.SYS_SETSID)
	do("set the usual umask", unix.SYS_UMASK, 0o022)
	do("enter "+callDir+"/work", unix.SYS_CHDIR, str(callDir+"/work"))
	do("leave groups", unix.SYS_SETGROUPS, 0, 0)
	do("change group", unix.SYS_SETRESGID, s.uid, s.uid, s.uid)
	do("change user", unix.SYS_SETRESUID, s.uid, s.uid, s.uid)
	do("forgo privileges", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	do("unblock signals", unix.SYS_RT_SIGPROCMASK, 2, sc.Bytes(make([]byte, 8)), 0, 8)
	if len(s.w.cfg.Filter) > 0 {
		do("filter calls", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, filterProgram(sc, s.w.cfg.Filter))
	}
	s.step.exec = do("execute", unix.SYS_EXECVE, 0, 0, 0)

	// The first process again.
	sc.Resume(nested)
	s.wait, s.usage = sc.Bytes(make([]byte, 128)), sc.Bytes(make([]byte, 144))
	do("wait for the program", unix.SYS_WAITID, unix.P_PID, 2, s.wait, unix.WEXITED, s.usage)
}

// tmpfsOptions are the mount options for a call's files.
func tmpfsOptions(l *Limits) string {
	// Four inodes are the root's and those of its directories.
	return "mode=755,size=" + strconv.FormatInt(l.FileBytes, 10) + ",nr_inodes=" + strconv.FormatInt(l.Files+4, 10)
}

// filterProgram writes the kernel's description of a filter and the filter.
func filterProgram(sc *nursery.Script, filter []byte) uintptr {
	addr := uint64(sc.Bytes(filter))
	n := len(filter) / 8
	head := []byte{byte(n), byte(n >> 8), 0, 0, 0, 0, 0, 0}
	for k := range 8 {
		head = append(head, byte(addr>>(8*k)))
	}
	return sc.Bytes(head)
}

// onMade is called when the cell has said that it is ready.
func (s *slot) onMade() {
	drain(s.made)
	if s.state != making {
		return
	}
	s.fails = 0
	s.dir, s.mounts = int(s.script.Value(s.step.dir)), int(s.script.Value(s.step.mounts))
	s.pidfd = s.script.PIDFD()
	s.state = ready
	if err := s.w.watch(s.pidfd, slotEnded, s.n); err != nil {
		s.w.fatal("watch a cell", err)
	}
	s.w.next()
}

// onThrough is called when the thread is through with the cell.
func (s *slot) onThrough() {
	if _, ok := s.nursery.Result(); !ok {
		return
	}
	s.idle = true
	switch s.state {
	case making:
		step, err := s.script.Failed()
		if step < 0 {
			s.w.log("a cell ended before it was made")
		} else {
			s.w.log("cannot make a cell: " + s.names[step] + ": " + err.Error())
		}
		if fd := s.script.PIDFD(); fd >= 0 {
			_ = unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED, nil)
			unix.Close(fd)
		}
		s.closePipes()
		s.script.Free()
		s.fails++
		s.state = broken
		s.w.retryAt = now() + int64(min(s.fails, 50))*100_000
	case ended:
		s.again()
	}
}

// again makes a new cell where one has ended, or leaves the slot empty.
func (s *slot) again() {
	s.script.Free()
	s.cleanDir, s.cleanMounts = s.dir, s.mounts
	s.dir, s.mounts = -1, -1
	if err := s.prepare(); err != nil {
		s.w.fatal("make a cell", err)
	}
}

// onEnded is called when the cell's first process, and so every process in it, is gone.
func (s *slot) onEnded() {
	_ = unix.EpollCtl(s.w.epoll, unix.EPOLL_CTL_DEL, s.pidfd, nil)
	_ = unix.Waitid(unix.P_PIDFD, s.pidfd, nil, unix.WEXITED, nil)
	unix.Close(s.pidfd)
	s.pidfd = -1
	if s.call != nil {
		s.finish()
	}
	s.closePipes()
	s.state = ended
	if s.idle {
		s.again()
	} else {
		s.onThrough()
	}
	s.w.next()
}

func (s *slot) closePipes() {
	for _, p := range []*[2]int{&s.out, &s.err} {
		for k := range p {
			if p[k] >= 0 {
				unix.Close(p[k])
				p[k] = -1
			}
		}
	}
}

// drain empties an eventfd.
func drain(fd int) {
	var b [8]byte
	_, _ = unix.Read(fd, b[:])
}
