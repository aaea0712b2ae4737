package proxy

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/sandbox"
)

// Flow is a connection as its client made it.
type Flow struct {
	Key         string // the sandbox
	Client      netip.AddrPort
	Destination netip.AddrPort // where the client wanted to go
}

// Config is a proxy's. Zero values take the defaults named.
type Config struct {
	// Origin tells whose connection it is and where it was going. See Transparent.
	Origin func(net.Conn) (Flow, error)
	// Program gives the sandbox's program that is in force now.
	Program func(key string) (*network.Program, bool)
	// Answered says whether an address was answered for a name (lower case, no trailing dot), and still is valid.
	Answered func(key, name string, addr netip.Addr) bool
	// Dial connects to f.Destination from where the node reaches the internet.
	Dial func(ctx context.Context, f Flow) (net.Conn, error)
	// Events takes what is to be recorded. It must not block. May be nil.
	Events func(Event)
	// Busy hears when a sandbox has its first connection, and when its last one has gone. It must not block, nor call the
	// Server. May be nil.
	Busy func(key string, busy bool)

	HelloTimeout time.Duration // for what the client says first, and each head of a request (10 s)
	DialTimeout  time.Duration // (10 s)
	IdleTimeout  time.Duration // without a byte in either direction (1 h)

	MaxConns   int // of all sandboxes (16,384, or what the process's limit of open files has room for if that is less)
	MaxSandbox int // of one (1,024); the program's limit of connections if that is less

	// AllowECH accepts hellos that carry an encrypted one, by their outer name.
	AllowECH bool

	Log *slog.Logger
	Now func() time.Time
}

// usualConns is how many connections there may be. Each has two sockets and, while bytes move both ways, two pipes: six
// descriptors; filesEach leaves as many again as a third of that for all else.
const (
	usualConns = 1 << 14
	filesEach  = 8
)

// UsualFiles is how many descriptors a process must be allowed for as many connections as a Server takes without MaxConns.
const UsualFiles = usualConns * filesEach

func (c Config) withDefaults() (Config, error) {
	if c.Origin == nil || c.Program == nil || c.Answered == nil || c.Dial == nil {
		return c, fmt.Errorf("proxy: %w: Origin, Program, Answered and Dial are needed", sandbox.ErrInvalid)
	}
	c.HelloTimeout = cmp.Or(c.HelloTimeout, 10*time.Second)
	c.DialTimeout = cmp.Or(c.DialTimeout, 10*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, time.Hour)
	files, err := linux.FileLimit()
	if err != nil {
		return c, err
	}
	c.MaxConns = cmp.Or(c.MaxConns, int(min(usualConns, max(files/filesEach, 1))))
	c.MaxSandbox = cmp.Or(c.MaxSandbox, 1<<10)
	if c.Events == nil {
		c.Events = func(Event) {}
	}
	if c.Busy == nil {
		c.Busy = func(string, bool) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, nil
}

// Transparent is the Origin of connections that arrive at a transparent listener: their local address is where they
// were going. identify tells the sandbox that has a source address.
func Transparent(identify func(netip.Addr) (key string, ok bool)) func(net.Conn) (Flow, error) {
	return func(c net.Conn) (Flow, error) {
		from, err := netip.ParseAddrPort(c.RemoteAddr().String())
		if err != nil {
			return Flow{}, err
		}
		to, err := netip.ParseAddrPort(c.LocalAddr().String())
		if err != nil {
			return Flow{}, err
		}
		from, to = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
		key, ok := identify(from.Addr())
		if !ok {
			return Flow{}, fmt.Errorf("no sandbox has the address %s: %w", from.Addr(), sandbox.ErrNotFound)
		}
		return Flow{key, from, to}, nil
	}
}

// EventKind is what happened.
type EventKind string

// The kinds of events.
const (
	Refused EventKind = "refused" // the program does not allow it, or it could not be told
	Limited EventKind = "limited" // too many connections
	Failed  EventKind = "failed"  // the destination did not answer
	Cut     EventKind = "cut"     // the policy changed
	Ended   EventKind = "ended"   // an allowed connection has ended
)

// Event is something to record about a connection.
type Event struct {
	Time time.Time
	Flow
	Kind     EventKind
	Protocol string // "tls", "http", or "" if not told
	Name     string // SNI or Host, as far as told; of several, the last
	// Rule and Source say which rule decided; Why is for people.
	Rule   string
	Source network.Source
	Why    string
	// Sent and Received are the bytes from and to the client.
	Sent, Received uint64
	// Suppressed counts this sandbox's events that were left out since the last one, with their bytes. Events of
	// kind Ended and all others are counted apart.
	Suppressed                         int
	SuppressedSent, SuppressedReceived uint64
}

// Stats count since the start; Open is now.
type Stats struct {
	Accepted, Refused, Limited, Failed, Cut, Ended uint64
	Sent, Received                                 uint64
	Open                                           int
}
