package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/sandbox"
)

// Client is the sandbox that asks.
type Client struct {
	Key        string // names the sandbox
	Program    *network.Program
	Generation uint64 // of the program
}

// Grant makes addresses reachable for one sandbox.
type Grant struct {
	Key        string
	Generation uint64
	Name       string // that they were answered for, normalised
	Addresses  []Address
	// Until is when new connections may no longer be made; established ones go on.
	Until time.Time
}

// Address is one address with what opens there.
type Address struct {
	Addr     netip.Addr
	Openings []network.Opening
}

// Opener applies grants. It is waited for before an answer is sent, so that who has the answer can connect.
type Opener interface {
	// Open returns once the addresses are reachable. ErrStale says that the sandbox's policy has another
	// generation by now; the question is then decided anew.
	Open(ctx context.Context, g Grant) error
}

// ErrStale is what an Opener returns for a generation that is not in force.
var ErrStale = errors.New("the policy has changed meanwhile")

// Config is a resolver's. Zero values take defaults where one is named.
type Config struct {
	// Identify tells the sandbox that has an address.
	Identify func(src netip.Addr) (Client, bool)
	Opener   Opener
	// Local gives the addresses of names that need no policy: those of a sandbox's own job. May be nil.
	Local func(key, name string) ([]netip.Addr, bool)
	// Events takes what is to be recorded. It must not block. May be nil.
	Events func(Event)

	// Upstreams are the resolvers to ask, the first that answers is kept to.
	Upstreams []netip.AddrPort
	// Dial connects to an upstream; nil dials from the process's namespace. network is "udp" or "tcp".
	Dial func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error)
	// Timeout is how long a question may wait for upstreams in all (5 s), and Try for one of them (1.5 s).
	Timeout, Try time.Duration

	MinTTL, MaxTTL time.Duration // of answers (5 s, 5 min)
	Grace          time.Duration // that addresses stay open beyond the answer's time to live (30 s)
	MaxAddresses   int           // of an answer (16)
	CacheEntries   int           // (65,536)

	Rate       float64 // questions per second of a sandbox (100), in bursts of three seconds' worth
	InFlight   int     // questions of a sandbox at once (64)
	AllFlights int     // questions of all at once (4,096)
	// WildBytes bounds the bytes per second that a sandbox may put into new names under wildcards (128), in bursts
	// of WildBurst (16 KiB). They reach the name servers of the domain.
	WildBytes float64
	WildBurst int

	Log *slog.Logger
	Now func() time.Time
}

func (c Config) withDefaults() (Config, error) {
	if c.Identify == nil || c.Opener == nil {
		return c, fmt.Errorf("resolver: %w: Identify and Opener are needed", sandbox.ErrInvalid)
	}
	if len(c.Upstreams) == 0 {
		return c, fmt.Errorf("resolver: %w: name at least one upstream", sandbox.ErrInvalid)
	}
	for _, u := range c.Upstreams {
		if !u.IsValid() || u.Port() == 0 {
			return c, fmt.Errorf("resolver: %w: upstream %s needs an address and a port", sandbox.ErrInvalid, u)
		}
	}
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.Try = cmp.Or(c.Try, 1500*time.Millisecond)
	c.MinTTL = cmp.Or(c.MinTTL, 5*time.Second)
	c.MaxTTL = cmp.Or(c.MaxTTL, 5*time.Minute)
	c.Grace = cmp.Or(c.Grace, 30*time.Second)
	c.MaxAddresses = cmp.Or(c.MaxAddresses, 16)
	c.CacheEntries = cmp.Or(c.CacheEntries, 1<<16)
	c.Rate = cmp.Or(c.Rate, 100)
	c.InFlight = cmp.Or(c.InFlight, 64)
	c.AllFlights = cmp.Or(c.AllFlights, 4096)
	c.WildBytes = cmp.Or(c.WildBytes, 128)
	c.WildBurst = cmp.Or(c.WildBurst, 16<<10)
	if c.MaxTTL < c.MinTTL {
		return c, fmt.Errorf("resolver: %w: MaxTTL %s is less than MinTTL %s", sandbox.ErrInvalid, c.MaxTTL, c.MinTTL)
	}
	if c.Dial == nil {
		var d net.Dialer
		c.Dial = func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			return d.DialContext(ctx, network, to.String())
		}
	}
	if c.Local == nil {
		c.Local = func(string, string) ([]netip.Addr, bool) { return nil, false }
	}
	if c.Events == nil {
		c.Events = func(Event) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, nil
}

// EventKind is what happened.
type EventKind string

// The kinds of events.
const (
	Denied  EventKind = "denied"  // the program does not allow the name
	Dropped EventKind = "dropped" // addresses of an allowed name may not be reached
	Limited EventKind = "limited" // too many questions, or a name that could carry data
	Failed  EventKind = "failed"  // upstreams or the data plane
)

// Event is something to record about a sandbox.
type Event struct {
	Time       time.Time
	Key        string
	Generation uint64
	Kind       EventKind
	Name, Type string
	// Rule and Source say which rule decided (Denied); Why is for people.
	Rule      string
	Source    network.Source
	Why       string
	Addresses []netip.Addr // those dropped
	// Suppressed counts this sandbox's events that were left out since the last one.
	Suppressed int
}

// Stats count since the start.
type Stats struct {
	Queries, Answered, Denied, Dropped, Limited, Failed uint64
	// Unknown came from addresses of no sandbox. Upstream were asked upstream; Forged are packets that were not the
	// answer they pretended to be.
	Unknown, Upstream, CacheHits, Forged uint64
}
