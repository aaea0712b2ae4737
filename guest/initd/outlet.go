package initd

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// Discarded output is read at most once in drainTick for each pipe, so that a flood from what a command left
// behind costs little; maxDrains bounds the pipes that are kept open for it.
const (
	drainTick = 10 * time.Millisecond
	maxDrains = 2048
)

// outlet is the reading end of a pipe or terminal that commands write to.
type outlet struct {
	i       *Init
	fd      int
	stream  wire.Stream
	cmd     *command // who gets the bytes; nil = they are discarded
	keep    bool     // of a session: survives its commands
	eof     bool     // closed
	paused  bool     // not in the poller: the buffer is full, or until the next tick
	owed    int      // bytes that must be read before the command ends
	rearm   timer
	onInput *inlet // terminals: shares the descriptor
}

func (i *Init) newOutlet(fd int, stream wire.Stream, cmd *command) (*outlet, error) {
	o := &outlet{i: i, fd: fd, stream: stream, cmd: cmd}
	return o, i.poll.add(fd, unix.EPOLLIN, o)
}

func (o *outlet) ready(events uint32) {
	if o.onInput != nil && events&unix.EPOLLOUT != 0 {
		o.onInput.pump()
	}
	if !o.eof && events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		o.read()
	}
}

// pending is the number of bytes that can be read now.
func (o *outlet) pending() int {
	if o.eof {
		return 0
	}
	n, err := rawPending(o.fd)
	if err != nil {
		return 0
	}
	return n
}

// pump reads until nothing is left or the buffer is full.
func (o *outlet) pump() {
	o.i.timers.stop(&o.rearm)
	for !o.eof && o.read() {
	}
}

// read takes what one call gives; false when there is nothing, or no room for it.
func (o *outlet) read() bool {
	c := o.cmd
	if c == nil {
		o.discard()
		return false
	}
	if !c.room(o.stream) {
		o.pause()
		if c.out.empty() { // no memory for a page: nothing to acknowledge will bring us back
			o.i.timers.set(&o.rearm, drainTick, o.pump)
		}
		return false
	}
	buf := c.out.space(minSpace)
	n, err := rawRead(o.fd, buf)
	switch {
	case err == unix.EINTR:
		return true
	case err == unix.EAGAIN:
		c.out.drop(c.out.start)
		o.unpause()
		return false
	case err != nil || n == 0: // EIO: the terminal's other side is closed
		c.out.drop(c.out.start)
		o.close()
		c.checkDrain()
		return false
	}
	o.unpause()
	c.took(o.stream, n)
	o.owed = max(0, o.owed-n)
	if c.leaderEnded && !c.ended {
		c.checkDrain()
		return true
	}
	return false
}

// discard reads once into nothing.
func (o *outlet) discard() {
	n, err := rawRead(o.fd, o.i.scratch)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
	case err != nil || n == 0:
		o.close()
	case n > page:
		o.pause()
		o.i.timers.set(&o.rearm, drainTick, o.unpause)
	}
}

func (o *outlet) pause() {
	if !o.paused && !o.eof {
		o.paused = true
		o.i.poll.del(o.fd)
	}
}

func (o *outlet) unpause() {
	if o.paused && !o.eof {
		o.paused = false
		if o.i.poll.add(o.fd, o.interest(), o) != nil {
			o.close()
		}
	}
}

func (o *outlet) interest() uint32 {
	if o.onInput != nil && o.onInput.waiting() {
		return unix.EPOLLIN | unix.EPOLLOUT
	}
	return unix.EPOLLIN
}

// detach takes the outlet from its command. A pipe is drained into nothing until its last writer is gone; a
// terminal is hung up.
func (o *outlet) detach() {
	o.cmd, o.owed = nil, 0
	switch {
	case o.eof:
	case o.stream == wire.Terminal:
		o.close()
	case o.keep:
		o.unpause()
	default:
		o.unpause()
		o.i.drains = append(o.i.drains, o)
		if len(o.i.drains) > maxDrains {
			o.i.drains[0].close()
		}
	}
}

func (o *outlet) close() {
	if o.eof {
		return
	}
	if o.i.timers.stop(&o.rearm); !o.paused {
		o.i.poll.del(o.fd)
	}
	o.eof = true
	if o.onInput != nil {
		o.onInput.fd = -1
		o.onInput.failAll()
	}
	rawClose(o.fd)
	for k, d := range o.i.drains {
		if d == o {
			o.i.drains = append(o.i.drains[:k], o.i.drains[k+1:]...)
			break
		}
	}
}
