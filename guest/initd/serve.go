package initd

import (
	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/stage"
	"github.com/opendsec/dsec/guest/users"
	"github.com/opendsec/dsec/guest/wire"
)

// serve handles one frame. p is valid during the call; fds are owned by it.
func (i *Init) serve(c *conn, h wire.Header, p []byte, fds []int) {
	// What a request does not take is closed.
	defer func() {
		for _, fd := range fds {
			if fd >= 0 {
				rawClose(fd)
			}
		}
	}()
	if !c.hello {
		i.greet(c, h, p)
		return
	}
	i.worked()
	var err error
	switch h.Kind {
	case wire.KindData, wire.KindCredit, wire.KindEnd, wire.KindReset:
		if !c.serveStream(h, p) {
			c.close()
		}
		return
	case wire.KindClaim:
		var m wire.Claim
		if err = m.Decode(p); err == nil {
			err = i.enter(c, h.ID, &m, fds)
		}
	case wire.KindStart:
		var m wire.Start
		if err = m.Decode(p); err == nil {
			err = i.start(c, h.ID, &m, fds)
		}
	case wire.KindOpenSession:
		var m wire.OpenSession
		if err = m.Decode(p); err == nil {
			err = i.openSession(c, h.ID, &m, fds)
		}
	case wire.KindList:
		list := make([]wire.CommandStatus, 0, len(i.commands))
		for _, cmd := range i.commands {
			list = append(list, cmd.status())
		}
		c.reply(h.ID, func(b []byte) []byte { return wire.AppendStatuses(b, list) })
	case wire.KindInput:
		var m wire.Input
		if err = m.Decode(p); err == nil {
			err = i.input(c, h.ID, &m)
		}
	case wire.KindResume, wire.KindSignal, wire.KindResize, wire.KindAck, wire.KindRelease, wire.KindCloseSession, wire.KindHold:
		var m wire.Control
		if err = m.Decode(p); err == nil {
			err = i.control(c, h, &m)
		}
	case wire.KindStat, wire.KindListDir, wire.KindMkdir, wire.KindRename, wire.KindRemove,
		wire.KindOpenRead, wire.KindOpenTar, wire.KindUnpack, wire.KindOpenWrite, wire.KindDial, wire.KindWatch:
		err = i.serveFiles(c, h, p)
	default:
		c.close()
		return
	}
	if err == nil || h.Kind == wire.KindAck || h.Kind == wire.KindRelease {
		return
	}
	c.fail(h.ID, toWire(err))
}

func toWire(err error) *wire.Error {
	if e, ok := err.(*wire.Error); ok {
		return e
	}
	return &wire.Error{Code: wire.CodeInternal, Message: err.Error()}
}

// enter serves Claim.
func (i *Init) enter(c *conn, id uint32, m *wire.Claim, fds []int) error {
	if i.claimed && len(fds) == 0 && (!i.system || len(m.Seed) > 0) {
		return i.renew(c, id, m)
	}
	if i.claimed {
		return &wire.Error{Code: wire.CodeWrongState, Message: "this shell has been claimed before"}
	}
	if i.system {
		return i.enterSystem(c, id, m, fds)
	}
	if len(fds) != 1 {
		return &wire.Error{Code: wire.CodeInvalid, Message: "a claim carries the descriptor of one mount"}
	}
	i.claimed = true // a failed attempt leaves a shell that nobody can use
	i.claim = *m
	i.claim.Seed = nil
	if err := i.stage.Enter(fds[0], m.Hostname, m.ShmBytes); err != nil {
		return err
	}
	c.reply(id, nil)
	// The first command will most likely be this user's.
	i.withUser("", func(users.User, *wire.Error) {})
	return nil
}

// enterSystem serves Claim in a whole system, whose root is what it is.
func (i *Init) enterSystem(c *conn, id uint32, m *wire.Claim, fds []int) error {
	if len(fds) != 0 {
		return &wire.Error{Code: wire.CodeInvalid, Message: "a whole system has its root already"}
	}
	if m.Hostname != "" {
		if err := stage.SetHostname(m.Hostname); err != nil {
			return err
		}
	}
	i.claimed, i.claim = true, *m
	i.claim.Seed = nil
	c.reply(id, nil)
	i.withUser("", func(users.User, *wire.Error) {})
	return nil
}

// renew serves a Claim without a descriptor: the sandbox goes on in another machine, of another name. What its commands
// get from now on changes; what runs has what it had.
func (i *Init) renew(c *conn, id uint32, m *wire.Claim) error {
	if m.Hostname != "" {
		if err := unix.Sethostname([]byte(m.Hostname)); err != nil {
			return &wire.Error{Code: wire.CodeInternal, Message: "set hostname: " + err.Error()}
		}
	}
	i.claim.Hostname, i.claim.Env, i.claim.User, i.claim.Workdir = m.Hostname, m.Env, m.User, m.Workdir
	c.reply(id, nil)
	return nil
}

// control serves the small requests on a command or session.
func (i *Init) control(c *conn, h wire.Header, m *wire.Control) error {
	if h.Kind == wire.KindHold {
		i.hold(m.Flag)
		c.reply(h.ID, nil)
		return nil
	}
	if h.Kind == wire.KindCloseSession {
		s := i.sessions[m.Name]
		if s == nil {
			return &wire.Error{Code: wire.CodeNotFound, Message: "no session " + m.Name}
		}
		s.close()
		c.reply(h.ID, nil)
		return nil
	}
	cmd := i.commands[m.Name]
	if cmd == nil {
		return &wire.Error{Code: wire.CodeNotFound, Message: "no command " + m.Name}
	}
	switch h.Kind {
	case wire.KindAck:
		cmd.ack(m.Offset)
		return nil
	case wire.KindRelease:
		cmd.release()
		return nil
	case wire.KindResume:
		if m.Offset < cmd.out.start || m.Offset > cmd.out.end {
			return &wire.Error{Code: wire.CodeInvalid, Message: "output at that offset is not held"}
		}
		c.reply(h.ID, nil)
		cmd.attached, cmd.told, cmd.next = true, false, m.Offset
		// Who asks from here on has stored what lies before. The buffer may be full of that: then nothing else
		// would ever be sent that could be acknowledged.
		cmd.ack(m.Offset)
		cmd.wantSend()
		return nil
	case wire.KindSignal:
		if cmd.leaderEnded {
			return &wire.Error{Code: wire.CodeNotFound, Message: "the command has ended"}
		}
		if m.Value < 0 || m.Value > 64 {
			return &wire.Error{Code: wire.CodeInvalid, Message: "no such signal"}
		}
		cmd.signaled = cmd.signaled || m.Value != 0
		if err := cmd.signal(unix.Signal(m.Value), m.Flag); err != nil {
			return err
		}
	case wire.KindResize:
		if cmd.input == nil || cmd.input.terminal == nil || cmd.input.fd < 0 {
			return &wire.Error{Code: wire.CodeInvalid, Message: "the command has no terminal"}
		}
		if err := resize(cmd.input.fd, uint16(m.Value>>16), uint16(m.Value)); err != nil {
			return err
		}
	}
	c.reply(h.ID, nil)
	return nil
}

func resize(fd int, columns, rows uint16) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
}

func (i *Init) input(c *conn, id uint32, m *wire.Input) error {
	cmd := i.commands[m.Command]
	switch {
	case cmd == nil:
		return &wire.Error{Code: wire.CodeNotFound, Message: "no command " + m.Command}
	case cmd.leaderEnded:
		return &wire.Error{Code: wire.CodeClosed, Message: "the command has ended"}
	case cmd.input == nil:
		return &wire.Error{Code: wire.CodeInvalid, Message: "the command was started without stdin"}
	}
	cmd.input.take(c, id, m)
	return nil
}
