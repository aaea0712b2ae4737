package netproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

// peer is a server that a client is connected to. Client.mu is held while something is said; a goroutine writes it, since who
// answers a question about a name does not wait for that.
type peer struct {
	conn *net.UnixConn
	gone chan struct{} // closed when it has ended

	ending  sync.Mutex
	process *os.File // nil: it has ended, or it is this process, in tests
	own     bool     // this process

	wake chan struct{} // there is something to be written
	quit chan struct{} // closed when nothing more is
	done chan struct{} // closed when nothing is being written

	programs map[*network.Program]uint64 // that it knows; guarded by Client.mu
	last     uint64                      // the last program's number

	mu      sync.Mutex
	out     []frame // what is to be written, in order
	id      uint64
	waiting map[uint64]chan answer
	busy    map[string]bool
}

// errRefused says that the server does not want this edge.
var errRefused = errors.New("it refuses")

func newPeer(c *net.UnixConn) (*peer, error) {
	pid, err := linux.PeerPID(c)
	if err != nil {
		return nil, err
	}
	// While the connection is open the process is the one that listens, and the number nobody else's.
	var process *os.File
	if pid != os.Getpid() {
		if process, err = linux.OpenPID(pid); err != nil {
			return nil, err
		}
	}
	return &peer{conn: c, process: process, own: process == nil, gone: make(chan struct{}),
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}), programs: map[*network.Program]uint64{}, waiting: map[uint64]chan answer{}, busy: map[string]bool{}}, nil
}

// greet says which network it is about.
func (p *peer) greet(ctx context.Context, h hello) error {
	stop := context.AfterFunc(ctx, func() { p.conn.Close() })
	defer stop()
	if err := p.conn.SetReadDeadline(time.Now().Add(answerWait)); err != nil {
		return err
	}
	if err := write(p.conn, frame{ID: p.expect(nil), Hello: &h}); err != nil {
		return err
	}
	f, err := read(p.conn)
	if err != nil {
		return err
	}
	if f.Answer == nil {
		return fmt.Errorf("%w: it does not say whether it serves the network", sandbox.ErrInvalid)
	}
	if f.Answer.Err != "" {
		return fmt.Errorf("%w: %s", errRefused, f.Answer.Err)
	}
	return p.conn.SetReadDeadline(time.Time{})
}

// expect gives the number of a call, whose answer goes to reply.
func (p *peer) expect(reply chan answer) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.id++
	if reply != nil {
		p.waiting[p.id] = reply
	}
	return p.id
}

func (p *peer) forget(id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, id)
}

// maxUnsaid is how much may wait to be written. A server that reads no more than that is ended, as one that does not answer.
// It is more than all sandboxes of a node need at the start.
const maxUnsaid = 8 * link.Slots

// say says something, after all that was said before. If it cannot be said the connection ends, and with it the server.
func (p *peer) say(frames ...frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.out) >= maxUnsaid {
		p.conn.Close()
		return
	}
	p.out = append(p.out, frames...)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// writeAll writes what is said until the connection ends.
func (p *peer) writeAll() {
	defer close(p.done)
	for {
		select {
		case <-p.wake:
		case <-p.quit:
			return
		}
		p.mu.Lock()
		out := p.out
		p.out = nil
		p.mu.Unlock()
		if err := write(p.conn, out...); err != nil {
			p.conn.Close()
			return
		}
	}
}

// set says under what a sandbox is.
func (p *peer) set(at Place, entries []dns.Entry, reply chan answer) uint64 {
	n, known := p.programs[at.Program]
	if !known {
		p.last++
		n = p.last
		p.programs[at.Program] = n
		p.say(frame{Program: &program{n, at.Program.Layers}})
	}
	id := p.expect(reply)
	p.say(frame{ID: id, Set: &place{at.Key, at.Addresses, n, entries}})
	return id
}

// dropUnused lets the server forget programs, once they are many more than those in use.
func (p *peer) dropUnused(places map[[2]netip.Addr]Place) {
	if len(p.programs) < 64 || len(p.programs) < 2*len(places) {
		return
	}
	used := map[*network.Program]bool{}
	for _, at := range places {
		used[at.Program] = true
	}
	for prog, n := range p.programs {
		if !used[prog] {
			delete(p.programs, prog)
			p.say(frame{Drop: n})
		}
	}
}

// listen hears the server until the connection ends.
func (p *peer) listen(c *Client) error {
	for {
		f, err := read(p.conn)
		if err != nil {
			return err
		}
		switch {
		case f.Answer != nil:
			p.mu.Lock()
			reply := p.waiting[f.ID]
			delete(p.waiting, f.ID)
			p.mu.Unlock()
			if reply != nil {
				reply <- *f.Answer
			}
		case f.Event != nil:
			c.cfg.Events(*f.Event)
		case f.Busy != nil:
			p.mu.Lock()
			if f.Busy.Busy {
				p.busy[f.Busy.Key] = true
			} else {
				delete(p.busy, f.Busy.Key)
			}
			p.mu.Unlock()
		case f.Ping != 0:
			c.mu.Lock()
			p.say(frame{Pong: f.Ping})
			c.mu.Unlock()
		}
	}
}

// close lets go of the connection, and returns the sandboxes that have connections.
func (p *peer) close() (busy []string) {
	p.conn.Close()
	p.ending.Lock()
	if p.process != nil {
		p.process.Close()
		p.process = nil
	}
	p.ending.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.busy))
}

// killWait is how long the kernel may take to end a process.
const killWait = 5 * time.Second

// kill ends the server, whatever state it is in, and returns when it has ended.
func (p *peer) kill(log *slog.Logger) error {
	p.conn.Close()
	p.ending.Lock()
	defer p.ending.Unlock()
	switch {
	case p.own:
		return fmt.Errorf("it is this process: %w", sandbox.ErrFailedPrecondition)
	case p.process == nil: // it was lost, and ended
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), killWait)
	defer cancel()
	err := linux.SignalPID(p.process, int(syscall.SIGKILL))
	if err == nil {
		err = linux.WaitPID(ctx, p.process)
	}
	if err == nil || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	log.Error("what checks names does not end", "err", err)
	return err
}
