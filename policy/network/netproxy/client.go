package netproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/policy/network/proxy"
)

// ClientConfig of a Client.
type ClientConfig struct {
	Socket   string // of the server
	Dir      string // of the router
	Plan     link.Plan
	Port     uint16 // that the datapath hands connections to
	Compiler network.Compiler
	Book     *dns.Book
	// Events takes the check's, Died the sandboxes whose connections ended with a server. They must not block.
	Events func(proxy.Event)
	Died   func(keys []string)
	Log    *slog.Logger
}

// Client is the edge's end of a Server. Without one, what it is told is for the next that comes.
type Client struct {
	cfg    ClientConfig
	hello  hello
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex // held while something is said, so that it comes in order
	places  map[[2]netip.Addr]Place
	peer    *peer      // nil: there is none
	looking bool       // it is not known yet whether there is one
	looked  *sync.Cond // of looking
}

// Patience: of Open for the server, which is started beside it; between looks for it; and for an answer.
const (
	startPatience = 5 * time.Second
	firstLook     = 10 * time.Millisecond
	lastLook      = 500 * time.Millisecond
	answerWait    = 10 * time.Second
)

// Open begins to speak with the server. It waits a moment for it, and goes on without.
func Open(cfg ClientConfig) (*Client, error) {
	text, err := cfg.Compiler.Catalog.Text()
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, places: map[[2]netip.Addr]Place{}, looking: true, hello: hello{Protocol: protocol, Dir: cfg.Dir, Plan: cfg.Plan, Port: cfg.Port, Catalog: json.RawMessage(text), Node: cfg.Compiler.Node}}
	c.looked = sync.NewCond(&c.mu)
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	there := make(chan struct{})
	c.wg.Go(func() { c.run(ctx, sync.OnceFunc(func() { close(there) })) })
	patience := time.NewTimer(startPatience)
	defer patience.Stop()
	select {
	case <-there:
	case <-patience.C:
		cfg.Log.Warn("nothing checks names: connections that need it are refused until it comes", "socket", cfg.Socket)
	}
	return c, nil
}

// run keeps a server.
func (c *Client) run(ctx context.Context, there func()) {
	pause := firstLook
	for ctx.Err() == nil {
		p, err := c.look(ctx)
		if err == nil {
			pause = firstLook
			there()
			c.lost(ctx, p, p.listen(c))
			continue
		}
		c.cfg.Log.Debug("no check of names yet", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, lastLook)
	}
}

// look finds the server, and tells it all. Where it fails there is none that has connections.
func (c *Client) look(ctx context.Context) (*peer, error) {
	c.mu.Lock()
	c.looking = true
	c.mu.Unlock()
	p, err := c.connect(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.looked.Broadcast()
	c.looking = false
	if err != nil {
		return nil, err
	}
	go p.writeAll()
	for _, at := range c.places {
		p.set(at, c.cfg.Book.Entries(at.Key), nil)
	}
	c.peer = p
	return p, nil
}

// connect finds the server. One that does not answer, or does not serve this network, is ended.
func (c *Client) connect(ctx context.Context) (*peer, error) {
	d := net.Dialer{Timeout: answerWait}
	nc, err := d.DialContext(ctx, "unix", c.cfg.Socket)
	if err != nil {
		return nil, err
	}
	p, err := newPeer(nc.(*net.UnixConn))
	if err != nil {
		nc.Close()
		return nil, err
	}
	err = p.greet(ctx, c.hello)
	switch {
	case err == nil:
		return p, nil
	case ctx.Err() != nil:
	case errors.Is(err, errRefused), errors.Is(err, os.ErrDeadlineExceeded):
		c.cfg.Log.Warn("what checks names is ended, it does not serve this network", "err", err)
		p.kill(c.cfg.Log)
	}
	p.close()
	return nil, err
}

// lost notes that a server is gone, and its connections with it.
func (c *Client) lost(ctx context.Context, p *peer, err error) {
	if ctx.Err() == nil { // if it is not, it is to lose its connections: what it was told will not hold for ever
		p.kill(c.cfg.Log)
	}
	c.mu.Lock()
	c.peer = nil
	c.mu.Unlock()
	close(p.quit)
	p.conn.Close()
	<-p.done
	close(p.gone)
	busy := p.close()
	if ctx.Err() != nil {
		return
	}
	c.cfg.Log.Warn("what checked names has ended, and its connections with it", "err", err, "sandboxes", len(busy))
	if len(busy) > 0 && c.cfg.Died != nil {
		c.cfg.Died(busy)
	}
}

// found waits until it is known whether there is a server. mu is held.
func (c *Client) found() *peer {
	for c.looking {
		c.looked.Wait()
	}
	return c.peer
}

// Set puts a sandbox under a program. When it returns, connections that it forbids are cut.
func (c *Client) Set(at Place) error {
	c.mu.Lock()
	c.places[at.Addresses] = at
	p := c.found()
	if p == nil {
		c.mu.Unlock()
		return nil // none is open, and the next server is told
	}
	reply := make(chan answer, 1)
	id := p.set(at, nil, reply)
	c.mu.Unlock()
	a, err := c.wait(p, id, reply)
	if err == nil && a.Err != "" {
		err = errors.New(a.Err)
	}
	c.cfg.Book.Add(at.Key, a.Entries...)
	return err
}

// Recheck cuts what a sandbox's program forbids.
func (c *Client) Recheck(key string) { c.ask(frame{Recheck: key}) }

// Part ends the connections of a sandbox whose processes are gone, and returns when their ends are told of.
func (c *Client) Part(key string) { c.ask(frame{Part: key}) }

// ask says something and waits until it is done.
func (c *Client) ask(f frame) {
	c.mu.Lock()
	p := c.found()
	if p == nil {
		c.mu.Unlock()
		return
	}
	reply := make(chan answer, 1)
	f.ID = p.expect(reply)
	p.say(f)
	c.mu.Unlock()
	if _, err := c.wait(p, f.ID, reply); err != nil {
		c.cfg.Log.Warn("ask what checks names", "err", err)
	}
}

// wait waits for an answer. A server that does not give one is killed: what is asked holds then, since nothing is open.
func (c *Client) wait(p *peer, id uint64, reply chan answer) (a answer, err error) {
	late := time.NewTimer(answerWait)
	defer late.Stop()
	select {
	case a = <-reply:
		return a, nil
	case <-p.gone:
		return a, nil
	case <-late.C:
	}
	p.forget(id)
	if err := p.kill(c.cfg.Log); err != nil {
		return a, fmt.Errorf("what checks names does not answer, and cannot be ended: %w", err)
	}
	return a, nil
}

// Forget ends and forgets the sandbox that has an address.
func (c *Client) Forget(addresses [2]netip.Addr) {
	c.mu.Lock()
	delete(c.places, addresses)
	if p := c.found(); p != nil {
		p.dropUnused(c.places)
	}
	c.mu.Unlock()
	c.ask(frame{Forget: &addresses})
}

// Answered tells what a sandbox is about to be answered, which the book has.
func (c *Client) Answered(key string, entries ...dns.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.peer != nil {
		c.peer.say(frame{Grant: &grant{key, entries}})
	}
}

// Close leaves the server and its connections as they are.
func (c *Client) Close() error {
	c.cancel()
	c.mu.Lock()
	if c.peer != nil {
		c.peer.conn.Close()
	}
	c.mu.Unlock()
	c.wg.Wait()
	return nil
}

// Destroy ends all connections: the network goes.
func (c *Client) Destroy() error {
	c.ask(frame{Stop: true})
	return c.Close()
}
