package netproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/proxy"
	"github.com/opendsec/dsec/sandbox"
)

// Config of a Check.
type Config struct {
	// Dial reaches the internet.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Book has what was answered.
	Book *dns.Book
	// Sync returns when the book has all that was answered before; nil: it always has.
	Sync func()
	// Events and Busy are as in proxy.Config.
	Events func(proxy.Event)
	Busy   func(key string, busy bool)
	Log    *slog.Logger
}

// Place is a sandbox.
type Place struct {
	Key       string
	Addresses [2]netip.Addr // IPv4, IPv6
	Program   *network.Program
}

// Check lets connections of sandboxes through, or not.
type Check struct {
	cfg   Config
	proxy *proxy.Server

	mu     sync.RWMutex
	keys   map[string]*Place
	places map[netip.Addr]*Place
}

// New makes a Check; Serve runs it.
func New(cfg Config) (*Check, error) {
	if cfg.Dial == nil || cfg.Book == nil {
		return nil, fmt.Errorf("check of names: %w: Dial and Book are needed", sandbox.ErrInvalid)
	}
	c := &Check{cfg: cfg, keys: map[string]*Place{}, places: map[netip.Addr]*Place{}}
	var err error
	c.proxy, err = proxy.New(proxy.Config{
		Origin: proxy.Transparent(c.keyOf), Program: c.program, Answered: c.answered, Events: cfg.Events, Busy: cfg.Busy, Log: cfg.Log,
		Dial: func(ctx context.Context, f proxy.Flow) (net.Conn, error) {
			return notHere(cfg.Dial(ctx, "tcp", f.Destination.String()))
		},
	})
	return c, err
}

// Serve takes connections until ctx ends, and with it all of them.
func (c *Check) Serve(ctx context.Context, listeners ...net.Listener) error {
	return c.proxy.Serve(ctx, listeners...)
}

// Set puts a sandbox under a program. Connections that it forbids are cut when it returns.
func (c *Check) Set(p Place) error {
	c.put(p)
	c.proxy.Recheck(p.Key)
	return nil
}

// put is Set without the cut. A sandbox that had an address before is forgotten.
func (c *Check) put(p Place) {
	c.mu.Lock()
	var gone []string
	for _, a := range p.Addresses {
		if old := c.places[a]; old != nil && old.Key != p.Key {
			gone = append(gone, old.Key)
			c.drop(old)
		}
	}
	if old := c.keys[p.Key]; old != nil {
		c.drop(old)
	}
	c.keys[p.Key] = &p
	for _, a := range p.Addresses {
		c.places[a] = &p
	}
	c.mu.Unlock()
	for _, key := range gone {
		c.forget(key)
	}
}

// drop takes a place out. mu is held.
func (c *Check) drop(p *Place) {
	delete(c.keys, p.Key)
	for _, a := range p.Addresses {
		if c.places[a] == p {
			delete(c.places, a)
		}
	}
}

// Recheck cuts what a sandbox's program forbids.
func (c *Check) Recheck(key string) { c.proxy.Recheck(key) }

// Part ends the connections of a sandbox whose processes are gone. Their ends are told of when it returns.
func (c *Check) Part(key string) { c.proxy.Part(key) }

// Forget ends and forgets the sandbox that has an address.
func (c *Check) Forget(addresses [2]netip.Addr) {
	for _, key := range c.takeOut(addresses) {
		c.forget(key)
	}
}

// takeOut takes out who has one of the addresses.
func (c *Check) takeOut(addresses [2]netip.Addr) (keys []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range addresses {
		if p := c.places[a]; p != nil {
			keys = append(keys, p.Key)
			c.drop(p)
		}
	}
	return keys
}

func (c *Check) forget(key string) {
	c.proxy.Recheck(key) // it has no program any more: all are cut
	c.proxy.Forget(key)
	c.cfg.Book.Forget(key)
}

// Answered notes what a sandbox is about to be answered.
func (c *Check) Answered(key string, entries ...dns.Entry) { c.cfg.Book.Add(key, entries...) }

// Close is for who may have a Client instead; the end of Serve's context ends a Check.
func (c *Check) Close() error { return nil }

// Destroy is Close.
func (c *Check) Destroy() error { return nil }

// keyOf tells the proxy who connects.
func (c *Check) keyOf(a netip.Addr) (string, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if p := c.places[a]; p != nil {
		return p.Key, true
	}
	return "", false
}

func (c *Check) program(key string) (*network.Program, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if p := c.keys[key]; p != nil && p.Program != nil {
		return p.Program, true
	}
	return nil, false
}

func (c *Check) answered(key, name string, a netip.Addr) bool {
	if c.cfg.Book.Answered(key, name, a) {
		return true
	}
	if c.cfg.Sync == nil {
		return false
	}
	c.cfg.Sync()
	return c.cfg.Book.Answered(key, name, a)
}

// notHere refuses a connection that has come to the node itself: by an address that it got after its start, which no list
// names. The kernel gives the two ends of such a connection the same address, and never those of others.
func notHere(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	here, ok1 := c.LocalAddr().(*net.TCPAddr)
	there, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if ok1 && ok2 && here.IP.Equal(there.IP) {
		c.Close()
		return nil, errors.New("the address is the node's own, which is always denied")
	}
	return c, nil
}
