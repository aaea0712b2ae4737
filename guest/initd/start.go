package initd

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/users"
	"github.com/opendsec/dsec/guest/wire"
)

// start serves Start. It takes the descriptors it uses out of fds by setting them to -1.
func (i *Init) start(c *conn, id uint32, m *wire.Start, fds []int) error {
	if err := i.admit(m); err != nil {
		return err
	}
	if m.Session != "" {
		return i.startInSession(c, id, m)
	}
	procs, kill, err := takeGroup(fds)
	if err != nil {
		return err
	}
	cmd := i.newCommand(m.ID)
	cmd.killFD = kill
	i.add(cmd) // from here the name is taken
	giveUp := func(err *wire.Error) {
		i.drop(cmd)
		closeFD(procs)
		c.fail(id, err)
	}
	i.withUser(m.User, func(u users.User, err *wire.Error) {
		if err != nil {
			giveUp(err)
			return
		}
		l, err := i.newLaunch(&u, m.Cwd, m.Env, m.Terminal)
		if err == nil {
			l.procsFD = procs
			err = i.stdio(cmd, l, m, &u)
		}
		if err != nil {
			giveUp(err)
			return
		}
		if m.Shell != "" {
			l.programs = shells("-c", m.Shell)
		} else {
			l.programs = candidates(m.Argv, l.env)
		}
		l.closes = append(l.closes, procs)
		l.done = func(pid int, err *wire.Error) {
			if err != nil {
				i.drop(cmd)
				c.fail(id, err)
				return
			}
			cmd.pid = pid
			i.procs[pid] = cmd
			cmd.setTimeout(m.TimeoutMillis)
			c.reply(id, (&wire.Started{PID: int32(pid)}).Append)
		}
		i.enqueue(l)
	})
	return nil
}

// admit checks what can be checked at once.
func (i *Init) admit(m *wire.Start) error {
	switch {
	case !i.claimed:
		return &wire.Error{Code: wire.CodeWrongState, Message: "the shell has no environment yet"}
	case m.ID == "":
		return &wire.Error{Code: wire.CodeInvalid, Message: "a command needs an id"}
	case i.commands[m.ID] != nil:
		return &wire.Error{Code: wire.CodeExists, Message: "a command of this id exists"}
	case (len(m.Argv) == 0) == (m.Shell == ""):
		return &wire.Error{Code: wire.CodeInvalid, Message: "exactly one of argv and a shell command line is needed"}
	case len(m.Argv) > 0 && m.Argv[0] == "":
		return &wire.Error{Code: wire.CodeInvalid, Message: "the program's name is empty"}
	case hasNUL(m.Argv...) || hasNUL(m.Shell, m.Cwd, m.User):
		return &wire.Error{Code: wire.CodeInvalid, Message: "arguments must not contain NUL"}
	case m.TimeoutMillis < 0:
		return &wire.Error{Code: wire.CodeInvalid, Message: "a timeout must not be negative"}
	case i.live >= maxLive:
		return &wire.Error{Code: wire.CodeExhausted, Message: "too many commands run in this sandbox; wait for one to end"}
	case len(i.commands) >= maxKnown:
		return &wire.Error{Code: wire.CodeExhausted, Message: "too many ended commands are not yet recorded"}
	}
	return nil
}

func hasNUL(l ...string) bool {
	for _, s := range l {
		if strings.IndexByte(s, 0) >= 0 {
			return true
		}
	}
	return false
}

// takeGroup takes the descriptors of a control group: cgroup.procs and cgroup.kill, or none (-1).
func takeGroup(fds []int) (procs, kill int, err error) {
	switch len(fds) {
	case 0:
		return -1, -1, nil
	case 2:
		procs, kill = fds[0], fds[1]
		fds[0], fds[1] = -1, -1
		return procs, kill, nil
	}
	return -1, -1, &wire.Error{Code: wire.CodeInvalid, Message: "a control group is two descriptors"}
}

func closeFD(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}

// drop forgets a command that did not start.
func (i *Init) drop(c *command) {
	if i.commands[c.id] == c {
		delete(i.commands, c.id)
	}
	if !c.ended {
		c.ended = true
		i.live--
	}
	i.timers.stop(&c.timeout)
	for _, o := range c.outlets {
		o.close()
	}
	if c.input != nil {
		c.input.close()
	}
	closeFD(c.killFD)
	c.killFD = -1
	c.out.free()
}

// withUser resolves a user, at once if it is known, else on a worker, because that reads files.
func (i *Init) withUser(spec string, f func(users.User, *wire.Error)) {
	if spec == "" {
		spec = i.claim.User
	}
	if u, ok := i.users.Cached(spec); ok {
		f(u, nil)
		return
	}
	ok := i.workers.do(func() {
		passwd, group := users.Stamps()
		u, err := users.Lookup(spec)
		i.call(func() {
			if err != nil {
				f(u, &wire.Error{Code: wire.CodeNoUser, Message: "user " + spec + ": " + err.Error()})
				return
			}
			i.users.Add(spec, u, passwd, group)
			f(u, nil)
		})
	})
	if !ok {
		f(users.User{}, errBusy)
	}
}

var errBusy = &wire.Error{Code: wire.CodeExhausted, Message: "too many operations wait in this sandbox"}

// newLaunch fills in what commands and sessions have in common.
func (i *Init) newLaunch(u *users.User, cwd string, env []string, terminal bool) (*launch, *wire.Error) {
	l := &launch{user: *u, cwd: cwd, procsFD: -1, extra: -1, terminal: terminal}
	switch {
	case l.cwd != "":
	case i.claim.Workdir != "":
		l.cwd = i.claim.Workdir
	default:
		l.cwd, l.softCwd = u.Home, true
	}
	var err *wire.Error
	l.env, err = environ(u, i.claim.Env, env, terminal)
	return l, err
}

// stdio makes the command's pipes or terminal.
func (i *Init) stdio(cmd *command, l *launch, m *wire.Start, u *users.User) *wire.Error {
	if m.Terminal {
		return i.terminal(cmd, l, m, u)
	}
	l.stdio[0] = i.stage.Null
	if m.Stdin {
		r, w, err := rawPipe()
		if err != nil {
			return noDescriptors
		}
		rawNonblock(w)
		give(r, u)
		l.stdio[0], l.closes = r, append(l.closes, r)
		cmd.input = &inlet{i: i, fd: w}
	}
	for k, stream := range []wire.Stream{wire.Stdout, wire.Stderr} {
		o, w, err := i.outputPipe(stream, cmd)
		if err != nil {
			for _, fd := range l.closes {
				unix.Close(fd)
			}
			return noDescriptors
		}
		give(w, u)
		l.stdio[1+k], l.closes = w, append(l.closes, w)
		cmd.outlets = append(cmd.outlets, o)
	}
	return nil
}

var noDescriptors = &wire.Error{Code: wire.CodeExhausted, Message: "no descriptors for one more command"}

// give makes a command's user the owner of its end of a pipe, so that it may open /dev/stdout and its like again.
func give(fd int, u *users.User) {
	if u.UID != 0 {
		_ = unix.Fchown(fd, int(u.UID), -1) // without it only that fails
	}
}

// outputPipe makes a pipe whose reading end is watched.
func (i *Init) outputPipe(stream wire.Stream, cmd *command) (*outlet, int, error) {
	r, w, err := rawPipe()
	if err != nil {
		return nil, -1, err
	}
	rawNonblock(r)
	o, err := i.newOutlet(r, stream, cmd)
	if err != nil {
		unix.Close(r)
		unix.Close(w)
		return nil, -1, err
	}
	return o, w, nil
}

// terminal makes the command's terminal. Both ends come from the descriptor of the terminal file system, not
// from a path that the sandbox can change.
func (i *Init) terminal(cmd *command, l *launch, m *wire.Start, u *users.User) *wire.Error {
	master, err := unix.Openat(i.stage.Pts, "ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &wire.Error{Code: wire.CodeExhausted, Message: "open a terminal: " + err.Error()}
	}
	_ = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0)
	slave, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if e != 0 {
		unix.Close(master)
		return &wire.Error{Code: wire.CodeExhausted, Message: "open a terminal: " + e.Error()}
	}
	_ = unix.Fchown(int(slave), int(u.UID), -1)
	columns, rows := m.Columns, m.Rows
	if columns == 0 || rows == 0 {
		columns, rows = 80, 24
	}
	_ = resize(master, columns, rows)
	o, err := i.newOutlet(master, wire.Terminal, cmd)
	if err != nil {
		unix.Close(master)
		unix.Close(int(slave))
		return noDescriptors
	}
	cmd.input = &inlet{i: i, fd: master, terminal: o}
	o.onInput = cmd.input
	cmd.outlets = []*outlet{o}
	l.stdio = [3]int{int(slave), int(slave), int(slave)}
	l.closes = append(l.closes, int(slave))
	return nil
}
