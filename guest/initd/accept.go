package initd

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// acceptRetry is the pause after a connection could not be taken for want of descriptors or memory.
const acceptRetry = 100 * time.Millisecond

// accept takes one connection. Its peer must live outside the sandbox's pid namespace: the kernel shows such a process as
// pid 0. In a whole system it must be the process that started this one.
func (i *Init) accept() {
	fd, _, err := unix.Accept4(i.listen, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	switch err {
	case nil:
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS:
		// The connection stays in line, and the socket ready: look again later instead of at once for ever.
		i.poll.del(i.listen)
		i.timers.set(&i.listenAgain, acceptRetry, func() {
			if err := i.poll.add(i.listen, unix.EPOLLIN, fdWatcher(i.accept)); err != nil {
				fatal("listen", err)
			}
		})
		return
	default:
		return
	}
	if cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil || cred.Pid != i.peer() {
		unix.Close(fd)
		return
	}
	if len(i.waiting) >= maxWaiting {
		i.waiting[0].close()
	}
	if c := i.newConn(fd); c != nil {
		i.waiting = append(i.waiting, c)
	}
}

func (i *Init) peer() int32 {
	if i.system {
		return int32(unix.Getppid())
	}
	return 0
}

// greet serves the first frame of a connection. A greater or equal epoch displaces the connection there is.
func (i *Init) greet(c *conn, h wire.Header, p []byte) {
	var m wire.Hello
	switch err := m.Decode(p); {
	case h.Kind != wire.KindHello || err != nil:
		c.close()
		return
	case m.Version != wire.Version:
		c.fail(h.ID, &wire.Error{Code: wire.CodeInvalid, Message: "dsec-init speaks another version of the protocol"})
		i.hangUp(c)
		return
	case m.Epoch < i.epoch:
		c.fail(h.ID, &wire.Error{Code: wire.CodeWrongState, Message: "a newer edge has taken over this sandbox"})
		i.hangUp(c)
		return
	}
	i.unwait(c)
	if old := i.current; old != nil {
		old.close()
	}
	i.current, i.epoch = c, m.Epoch
	c.epoch, c.hello = m.Epoch, true
	c.reply(h.ID, nil)
	for _, s := range i.sessions {
		if s.ended {
			s.tell()
		}
	}
}

// hangUp sends what is queued as far as the socket takes it, and closes.
func (i *Init) hangUp(c *conn) {
	c.flush()
	c.close()
}

func (i *Init) unwait(c *conn) {
	for k, w := range i.waiting {
		if w == c {
			i.waiting = append(i.waiting[:k], i.waiting[k+1:]...)
			return
		}
	}
}

func (i *Init) connClosed(c *conn) {
	i.unwait(c)
	if i.current != c {
		return
	}
	i.current = nil
	for _, cmd := range i.commands {
		cmd.attached, cmd.isQueued = false, false
	}
}
