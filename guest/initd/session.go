package initd

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/chronus"
	"github.com/opendsec/dsec/guest/users"
	"github.com/opendsec/dsec/guest/wire"
)

// interruptGrace is how long a session's shell has to report after all else in its group was killed.
const interruptGrace = 500 * time.Millisecond

// session is a shell that runs one command after the other.
type session struct {
	i       *Init
	id      string
	pid     int
	killFD  int
	outlets []*outlet
	script  *inlet // statements to the shell
	status  int    // reading end of the status pipe, -1 = closed
	reports chronus.Statuses
	moved   bool
	booted  func(*wire.Error) // answers OpenSession
	boot    timer
	grace   timer
	deaf    timer // the status pipe was closed

	number  int      // of the statement that runs
	current *command // that runs
	ended   bool
	exit    wire.Exit
}

// bootLimit bounds how long a shell may take for its first statement.
const bootLimit = time.Minute

func (i *Init) openSession(c *conn, id uint32, m *wire.OpenSession, fds []int) error {
	switch {
	case !i.claimed:
		return &wire.Error{Code: wire.CodeWrongState, Message: "the shell has no environment yet"}
	case m.ID == "" || hasNUL(m.ID, m.Cwd, m.User):
		return &wire.Error{Code: wire.CodeInvalid, Message: "a session needs an id, and no NUL in its parameters"}
	case i.sessions[m.ID] != nil:
		return &wire.Error{Code: wire.CodeExists, Message: "a session of this id exists"}
	case len(i.sessions) >= maxSessions:
		return &wire.Error{Code: wire.CodeExhausted, Message: "too many sessions are open in this sandbox; close one"}
	}
	procs, kill, err := takeGroup(fds)
	if err != nil {
		return err
	}
	s := &session{i: i, id: m.ID, killFD: kill, status: -1}
	i.sessions[m.ID] = s
	s.booted = func(err *wire.Error) {
		if s.booted = nil; err != nil {
			s.close()
			c.fail(id, err)
			return
		}
		c.reply(id, nil)
	}
	i.withUser(m.User, func(u users.User, err *wire.Error) {
		var l *launch
		if err == nil {
			l, err = i.newLaunch(&u, m.Cwd, m.Env, false)
		}
		if err == nil {
			err = s.pipes(l)
		}
		if err != nil {
			closeFD(procs)
			s.booted(err)
			return
		}
		l.procsFD, l.closes = procs, append(l.closes, procs)
		l.programs = shells("-s")
		l.done = s.launched
		i.enqueue(l)
	})
	return nil
}

// pipes makes the shell's four.
func (s *session) pipes(l *launch) *wire.Error {
	fail := func() *wire.Error {
		for _, fd := range l.closes {
			unix.Close(fd)
		}
		return noDescriptors
	}
	r, w, err := rawPipe()
	if err != nil {
		return fail()
	}
	rawNonblock(w)
	s.script = &inlet{i: s.i, fd: w}
	give(r, &l.user)
	l.stdio[0], l.closes = r, append(l.closes, r)
	for k, stream := range []wire.Stream{wire.Stdout, wire.Stderr} {
		o, w, err := s.i.outputPipe(stream, nil)
		if err != nil {
			return fail()
		}
		o.keep = true
		give(w, &l.user)
		l.stdio[1+k], l.closes = w, append(l.closes, w)
		s.outlets = append(s.outlets, o)
	}
	if r, w, err = rawPipe(); err != nil {
		return fail()
	}
	l.extra, l.closes = w, append(l.closes, w)
	rawNonblock(r)
	s.status = r
	if s.i.poll.add(r, unix.EPOLLIN, fdWatcher(s.readStatus)) != nil {
		return fail()
	}
	return nil
}

func (s *session) launched(pid int, err *wire.Error) {
	if err != nil {
		s.booted(err)
		return
	}
	s.pid = pid
	s.i.procs[pid] = s
	if s.i.sessions[s.id] != s { // closed meanwhile
		s.kill()
		return
	}
	s.i.timers.set(&s.boot, bootLimit, s.kill)
	s.say(chronus.Boot())
}

func (s *session) say(statement []byte) {
	s.script.write(nil, 0, statement, false)
}

// readStatus takes the shell's reports.
func (s *session) readStatus() {
	var b [512]byte
	n, err := rawRead(s.status, b[:])
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
	case err != nil || n <= 0:
		// Nobody can report any more. The shell has ended, which we shall be told; or it became another program
		// (exec), which nobody gives statements any more either: that one may finish; or it closed the pipe and is
		// of no use.
		s.closeStatus()
		if s.pid > 0 {
			// An exec closes one pipe after the other: look a moment later.
			s.i.timers.set(&s.deaf, interruptGrace, func() {
				if s.pid > 0 && s.listens() {
					s.kill()
				}
			})
		}
	default:
		s.reports.Feed(b[:n], s.report)
	}
}

// listens tells whether somebody has the other end of the script's pipe.
func (s *session) listens() bool {
	p := []unix.PollFd{{Fd: int32(s.script.fd), Events: unix.POLLOUT}}
	_, err := unix.Poll(p, 0)
	return err == nil && p[0].Revents&unix.POLLERR == 0
}

func (s *session) report(number, code int) {
	switch c := s.current; {
	case number == 0 && s.booted != nil:
		s.moved = code == 1
		s.i.timers.stop(&s.boot)
		s.booted(nil)
	case c != nil && number == s.number && !c.leaderEnded:
		s.i.timers.stop(&s.grace)
		c.exit.Code = int32(code)
		c.finishLeader()
	}
}

// startInSession serves Start of a command in a session.
func (i *Init) startInSession(c *conn, id uint32, m *wire.Start) error {
	s := i.sessions[m.Session]
	switch {
	case s == nil:
		return &wire.Error{Code: wire.CodeNotFound, Message: "no session " + m.Session}
	case m.Shell == "":
		return &wire.Error{Code: wire.CodeInvalid, Message: "a command in a session is a shell command line"}
	case m.Stdin || m.Terminal || m.Cwd != "" || m.User != "" || len(m.Env) > 0:
		return &wire.Error{Code: wire.CodeInvalid, Message: "a command in a session has the session's user, directory and environment, and no stdin or terminal"}
	case s.ended:
		return &wire.Error{Code: wire.CodeSessionEnded, Message: "the session's shell has ended; open a new session"}
	case s.booted != nil || s.current != nil:
		return &wire.Error{Code: wire.CodeWrongState, Message: "the session is busy with another command"}
	}
	cmd := i.newCommand(m.ID)
	cmd.session, cmd.pid, cmd.outlets = s, s.pid, append([]*outlet(nil), s.outlets...)
	i.add(cmd)
	s.number++
	s.current = cmd
	for _, o := range s.outlets {
		o.cmd = cmd
	}
	s.say(chronus.Statement(s.number, m.Shell, s.moved))
	cmd.setTimeout(m.TimeoutMillis)
	c.reply(id, (&wire.Started{PID: int32(s.pid)}).Append)
	return nil
}

// signal reaches what the shell has started; the shell itself only if there is nothing else.
func (s *session) signal(sig unix.Signal) error {
	if sig == unix.SIGKILL {
		s.interrupt()
		return nil
	}
	signalTree(s.pid, sig, false)
	return nil
}

// interrupt kills all but the shell, and the shell as well if it does not report soon.
func (s *session) interrupt() {
	if s.pid <= 0 {
		return
	}
	signalTree(s.pid, unix.SIGKILL, false)
	s.i.timers.set(&s.grace, interruptGrace, s.kill)
}

// kill ends the shell's whole tree.
func (s *session) kill() {
	if s.killFD >= 0 {
		if _, err := unix.Write(s.killFD, []byte{'1'}); err == nil {
			return
		}
	}
	if s.pid > 0 {
		signalTree(s.pid, unix.SIGKILL, true)
	}
}

// exited is called when the shell was reaped.
func (s *session) exited(ws unix.WaitStatus) {
	s.pid = 0
	s.ended = true
	if ws.Signaled() {
		s.exit.Signal = int32(ws.Signal())
	} else {
		s.exit.Code = int32(ws.ExitStatus())
	}
	s.i.timers.stop(&s.boot)
	s.i.timers.stop(&s.grace)
	s.i.timers.stop(&s.deaf)
	s.script.close()
	if s.status >= 0 {
		s.readStatus() // a report may have come just before the end
	}
	if s.booted != nil {
		s.booted(&wire.Error{Code: wire.CodeSessionEnded, Message: "the session's shell ended at once"})
		return
	}
	if c := s.current; c != nil && !c.leaderEnded {
		c.exit.Code, c.exit.Signal, c.exit.SessionEnded = s.exit.Code, s.exit.Signal, true
		c.finishLeader()
	}
	s.tell()
}

// tell sends SessionEnded.
func (s *session) tell() {
	if cc := s.i.current; cc != nil && s.i.sessions[s.id] == s {
		cc.send(wire.KindSessionEnded, 0, (&wire.Exited{Name: s.id, Exit: s.exit}).Append)
	}
}

func (s *session) closeStatus() {
	if s.status >= 0 {
		s.i.poll.del(s.status)
		unix.Close(s.status)
		s.status = -1
	}
}

// close serves CloseSession: the whole tree ends and the session is forgotten.
func (s *session) close() {
	delete(s.i.sessions, s.id)
	s.kill()
	if s.killFD >= 0 {
		unix.Close(s.killFD)
		s.killFD = -1
	}
	s.i.timers.stop(&s.boot)
	s.i.timers.stop(&s.grace)
	s.closeStatus()
	s.i.timers.stop(&s.deaf)
	if s.script != nil {
		s.script.close()
	}
	if c := s.current; c != nil && !c.leaderEnded {
		c.exit.Signal, c.exit.SessionEnded, c.signaled = int32(unix.SIGKILL), true, true
		c.finishLeader()
		c.finish()
	}
	for _, o := range s.outlets {
		o.close()
	}
	s.ended = true
}
