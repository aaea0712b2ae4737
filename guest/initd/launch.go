package initd

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/nursery"
	"github.com/opendsec/dsec/guest/users"
	"github.com/opendsec/dsec/guest/wire"
)

// launch is one process to be made by the nursery.
type launch struct {
	programs []program // tried in turn
	env      []string
	user     users.User
	cwd      string // must exist, unless softCwd
	softCwd  bool   // fall back to /
	stdio    [3]int // descriptors of dsec-init; closed by the launcher as told in closes
	extra    int    // descriptor that becomes statusFD in the child; -1 = none
	terminal bool
	procsFD  int   // cgroup.procs, -1 = none
	closes   []int // closed when the launch is over
	// done gets the process, or why there is none. The process is registered by whoever is told.
	done func(pid int, err *wire.Error)

	script                 *nursery.Script
	joinStep, cwdStep, ids int
	execs                  []int
}

// program is a path with its arguments.
type program struct {
	path string
	argv []string
}

// statusFD is where a session's shell finds its status pipe.
const statusFD = 8

// A fork that takes longer was stopped on purpose by something in the sandbox, or waits for a slow disk.
const (
	nudgeAfter = 5 * time.Second
	killAfter  = 2 * time.Minute
)

// enqueue hands a launch to the nursery when its turn has come.
func (i *Init) enqueue(l *launch) {
	i.starts = append(i.starts, l)
	if len(i.starts) == 1 {
		i.runNext()
	}
}

func (i *Init) runNext() {
	for len(i.starts) > 0 {
		l := i.starts[0]
		if err := l.build(i.nursery, i.claim.NoNewPrivileges); err != nil {
			i.starts = i.starts[1:]
			l.over(0, &wire.Error{Code: wire.CodeExhausted, Message: "no memory to start one more process"})
			continue
		}
		i.nursery.Run(l.script)
		began := now()
		var check func()
		check = func() {
			if pid := i.nursery.ForkedPID(); pid > 0 {
				// Root inside can stop the child before it executes; that must not stop the nursery for good.
				_ = unix.Kill(pid, unix.SIGCONT)
				if now()-began > int64(killAfter) {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
			}
			i.timers.set(&i.watchdog, nudgeAfter, check)
		}
		i.timers.set(&i.watchdog, nudgeAfter, check)
		return
	}
}

// collect takes the nursery's result.
func (i *Init) collect() {
	s, ok := i.nursery.Result()
	if !ok {
		return
	}
	i.timers.stop(&i.watchdog)
	l := i.starts[0]
	i.starts[0] = nil
	i.starts = i.starts[1:]
	err := l.verdict()
	pid := s.PID()
	s.Free()
	ws, early := i.early[pid]
	clear(i.early)
	l.over(pid, err)
	if p := i.procs[pid]; early && err == nil && p != nil {
		delete(i.procs, pid)
		p.exited(ws)
	}
	i.runNext()
}

func (l *launch) over(pid int, err *wire.Error) {
	for _, fd := range l.closes {
		rawClose(fd)
	}
	l.done(pid, err)
}

// build writes the script of the child.
func (l *launch) build(n *nursery.Nursery, noNewPrivileges bool) error {
	size := 1024 + 4*len(l.user.Groups) + len(l.cwd) + nursery.StringsSize(l.env)
	for k, p := range l.programs {
		size += len(p.path) + 1
		if !l.sameArgv(k) {
			size += nursery.StringsSize(p.argv)
		}
	}
	s, err := n.NewScript(32+len(l.programs), size)
	if err != nil {
		return err
	}
	l.script = s
	const r = uintptr(0)
	s.Fork()
	s.Do(0, unix.SYS_SETSID)
	l.joinStep = -1
	if l.procsFD >= 0 {
		l.joinStep = s.Do(0, unix.SYS_WRITE, uintptr(l.procsFD), s.String("0"), 1)
	}
	for k, fd := range l.stdio {
		s.Do(0, unix.SYS_DUP2, uintptr(fd), uintptr(k))
	}
	keep := uintptr(3)
	if l.extra >= 0 {
		if l.extra == statusFD {
			s.Do(0, unix.SYS_FCNTL, statusFD, unix.F_SETFD, 0)
		} else {
			s.Do(0, unix.SYS_DUP2, uintptr(l.extra), statusFD)
		}
		s.Do(0, unix.SYS_CLOSE_RANGE, 3, statusFD-1, 0)
		keep = statusFD + 1
	}
	if l.terminal {
		s.Do(0, unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0)
	}
	s.Do(0, unix.SYS_CLOSE_RANGE, keep, 1<<32-1, 0)
	s.DefaultSignals()
	s.Do(0, unix.SYS_UMASK, 0o022)
	s.Do(nursery.May, unix.SYS_PRLIMIT64, r, unix.RLIMIT_NOFILE, s.Bytes(rlimit(softNoFile, hardNoFile)), 0)
	s.Do(nursery.May, unix.SYS_PRLIMIT64, r, unix.RLIMIT_CORE, s.Bytes(rlimit(0, hardCore)), 0)
	if noNewPrivileges {
		s.Do(0, unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	groups := make([]byte, 0, 4*len(l.user.Groups))
	for _, g := range l.user.Groups {
		groups = append(groups, byte(g), byte(g>>8), byte(g>>16), byte(g>>24))
	}
	uid, gid := uintptr(l.user.UID), uintptr(l.user.GID)
	l.ids = s.Do(0, unix.SYS_SETGROUPS, uintptr(len(l.user.Groups)), s.Bytes(groups))
	s.Do(0, unix.SYS_SETRESGID, gid, gid, gid)
	s.Do(0, unix.SYS_SETRESUID, uid, uid, uid)
	l.cwdStep = -1
	if l.softCwd {
		s.Do(0, unix.SYS_CHDIR, s.String("/"))
		s.Do(nursery.May, unix.SYS_CHDIR, s.String(l.cwd))
	} else {
		l.cwdStep = s.Do(0, unix.SYS_CHDIR, s.String(l.cwd))
	}
	env := s.Strings(l.env)
	var argv uintptr
	for k, p := range l.programs {
		if !l.sameArgv(k) {
			argv = s.Strings(p.argv)
		}
		l.execs = append(l.execs, s.Do(nursery.May, unix.SYS_EXECVE, s.String(p.path), argv, env))
	}
	return nil
}

// sameArgv tells whether program k has the arguments of the one before it.
func (l *launch) sameArgv(k int) bool {
	return k > 0 && &l.programs[k].argv[0] == &l.programs[k-1].argv[0]
}

func rlimit(soft, hard uint64) []byte {
	b := make([]byte, 16)
	for k := range 8 {
		b[k], b[8+k] = byte(soft>>(8*k)), byte(hard>>(8*k))
	}
	return b
}

// verdict turns the script's outcome into an error; nil means that the program runs.
func (l *launch) verdict() *wire.Error {
	s := l.script
	if step, err := s.Failed(); step >= 0 {
		switch {
		case step == 0 && err == unix.EAGAIN:
			return &wire.Error{Code: wire.CodeExhausted, Message: "the sandbox's limit of processes is reached, or that of all sandboxes of the node"}
		case step == 0 && err == unix.ENOMEM:
			return &wire.Error{Code: wire.CodeExhausted, Message: "no memory to start one more process"}
		case step == 0:
			return &wire.Error{Code: wire.CodeInternal, Message: "fork: " + err.Error()}
		case step == l.cwdStep:
			return &wire.Error{Code: wire.CodeNoCwd, Message: "working directory " + l.cwd + ": " + err.Error()}
		case step == l.joinStep:
			return &wire.Error{Code: wire.CodeInternal, Message: "join the command's control group: " + err.Error()}
		case step >= l.ids && step < l.ids+3:
			return &wire.Error{Code: wire.CodeNoUser, Message: "become user " + l.user.Name + ": " + err.Error()}
		}
		return &wire.Error{Code: wire.CodeInternal, Message: "prepare the process: " + err.Error()}
	}
	if s.Err(l.execs[len(l.execs)-1]) == nil {
		return nil
	}
	// What tells most: a program that is there and cannot be run, as shells do.
	var worst error
	path := l.programs[0].argv[0]
	for k, e := range l.execs {
		err := s.Err(e)
		if missing := err == unix.ENOENT || err == unix.ENOTDIR; worst == nil || !missing {
			worst = err
			if !missing {
				path = l.programs[k].path
				break
			}
		}
	}
	code, text := wire.CodeNotExecutable, worst.Error()
	switch worst {
	case unix.ENOENT, unix.ENOTDIR:
		code = wire.CodeNoProgram
		text = "no such program"
		if strings.Contains(path, "/") {
			text = "no such file, or its interpreter is missing"
		}
	case unix.E2BIG:
		code, text = wire.CodeInvalid, "the arguments and environment are too long"
	case unix.ENOMEM, unix.EAGAIN:
		code = wire.CodeExhausted
	case unix.EIO:
		code = wire.CodeInternal
	}
	return &wire.Error{Code: code, Message: "run " + path + ": " + text}
}
