package machine

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/machine/control"
)

// controller answers the node.
type controller struct {
	port     *port
	bridge   *bridge
	system   bool // of an agent in a whole system
	prepared *control.Prepare

	initMu sync.Mutex
	init   *os.Process
	reset  chan error // somebody waits for the next dsec-init

	mu sync.Mutex // one writer
}

var (
	errNoGroup  = errors.New("no such control group")
	errPrepared = errors.New("prepared already")
)

// invalid is an error that the environment is to blame for.
type invalid struct{ error }

// serve answers requests for ever, one after the other.
func (c *controller) serve() {
	c.send(&control.Reply{Event: control.EventReady})
	r := bufio.NewReaderSize(c.port, control.MaxLine)
	for {
		line, err := r.ReadSlice('\n')
		if err == bufio.ErrBufferFull {
			continue // its end is no request either
		}
		if err != nil {
			return
		}
		var q control.Request
		if len(line) <= 1 || json.Unmarshal(line, &q) != nil {
			continue // a predecessor's beginning
		}
		reply := &control.Reply{N: q.N}
		if err := c.answer(&q, reply); err != nil {
			reply.Error = err.Error()
			var in invalid
			if errors.As(err, &in) {
				reply.Kind = control.KindInvalid
			} else if errors.Is(err, errNoGroup) {
				reply.Kind = control.KindNotFound
			} else if errors.Is(err, errPrepared) {
				reply.Kind = control.KindPrepared
			}
		}
		c.send(reply)
	}
}

func (c *controller) answer(q *control.Request, reply *control.Reply) (err error) {
	g := &c.bridge.groups
	switch q.Op {
	case control.OpSync:
		if len(q.Token) != control.TokenSize {
			return errors.New("bad token")
		}
		return c.bridge.sync(q.Token)
	case control.OpPrepare:
		if q.Prepare == nil || c.prepared != nil {
			return errPrepared
		}
		c.prepared = q.Prepare
		if c.system {
			if err := prepareSystem(q.Prepare, g); err != nil {
				c.prepared = nil // it may be tried again
				return err
			}
			return nil
		}
		// The kernel waits for others each time an interface moves; the disks are mounted meanwhile.
		plugged := make(chan error, 1)
		go func() { plugged <- c.plug(q.Prepare.Network) }()
		root, err := prepare(q.Prepare, g)
		if err = errors.Join(err, <-plugged); err == nil {
			c.bridge.setRoot(root)
		}
		return err
	case control.OpRenew:
		if q.Prepare == nil || c.prepared == nil {
			return errors.New("not prepared")
		}
		root, replug := "/root", c.replug
		if c.system {
			root, replug = "/", c.replugSystem
		}
		err := renew(root, q.Prepare, c.prepared)
		if err == nil {
			err = replug(q.Prepare.Network)
		}
		c.prepared.Hostname, c.prepared.Network = q.Prepare.Hostname, q.Prepare.Network
		return err
	case control.OpFreeze:
		return g.freeze(true)
	case control.OpThaw:
		return errors.Join(setClock(q.Time), g.freeze(false))
	case control.OpStats:
		reply.Stats = g.stats()
		return nil
	case control.OpReset:
		if c.system {
			return errors.New("a whole system cannot be reset")
		}
		return c.replace()
	case control.OpEnd:
		c.initMu.Lock()
		defer c.initMu.Unlock()
		return c.init.Kill()
	case control.OpPanic:
		return os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
	case control.OpDisk:
		var st unix.Statfs_t
		dir := "/disk"
		if c.system {
			dir = "/"
		}
		err := unix.Statfs(dir, &st)
		reply.Free = int64(st.Bavail) * st.Bsize
		return err
	case control.OpFlush:
		dir, err := os.Open("/disk")
		if err != nil {
			return err
		}
		defer dir.Close()
		return unix.Syncfs(int(dir.Fd()))
	case control.OpGroup:
		reply.Group, err = g.look(q.Group)
		return err
	case control.OpKill:
		return g.signal(q.Group, q.Signal)
	case control.OpRemove:
		return g.remove(q.Group)
	}
	return errors.New(control.Unknown)
}

func (c *controller) connectionClosed(token []byte) {
	c.send(&control.Reply{Event: control.EventClosed, Token: token})
}

func (c *controller) send(r *control.Reply) {
	b, err := json.Marshal(r)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The empty line ends what a write that was cut off had begun.
	_, _ = io.WriteString(c.port, "\n"+string(b)+"\n")
}
