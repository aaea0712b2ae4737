package initd

import (
	"time"

	"golang.org/x/sys/unix"
)

// setTimeout arms the command's deadline.
func (c *command) setTimeout(millis int64) {
	if millis <= 0 {
		return
	}
	d := time.Duration(min(millis, 1<<40)) * time.Millisecond
	if c.i.held {
		c.left = d
		return
	}
	c.i.timers.set(&c.timeout, d, func() {
		c.timedOut = true
		if c.session != nil {
			c.session.interrupt()
		} else {
			c.killTree(unix.SIGKILL)
		}
	})
}

// hold stops the clocks of all timeouts while the sandbox is frozen, and lets them run on afterwards.
func (i *Init) hold(hold bool) {
	if i.held == hold {
		return
	}
	i.held = hold
	for _, c := range i.commands {
		switch {
		case hold && c.timeout.index != 0:
			c.left = max(time.Duration(c.timeout.when-now()), time.Millisecond)
			i.timers.stop(&c.timeout)
		case !hold && c.left > 0 && !c.leaderEnded:
			c.setTimeout(max(c.left.Milliseconds(), 1))
			c.left = 0
		}
	}
}
