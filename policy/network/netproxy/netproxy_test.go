package netproxy

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/proxy"
)

// TestPrograms: a program that is compiled again from what is said of it is the same, whatever it is made of.
func TestPrograms(t *testing.T) {
	own, err := network.Builtin().Extend("own", []byte("services:\n  own:\n    title: ours\n    domains: [own.example, '*.more.example']\n    ports: [443, 8000-8100]\n    includes: [pypi]\n"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := own.Text()
	if err != nil {
		t.Fatal(err)
	}
	there, err := (*network.Catalog)(nil).Extend("there", text)
	if err != nil {
		t.Fatal(err)
	}
	node := []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}
	for _, layers := range [][]string{
		{"none"}, {"open"}, {"open !github"}, {"own !npm", "open"}, {"*.example.org:22,80-90/tcp 10.1.0.0/16:5432 [2001:db8::/32]:53/udp !10.1.2.3", "pypi own", "open !192.0.2.0/24"},
		{"203.0.113.7/icmp bücher.example"},
	} {
		var in []network.Layer
		for i, l := range layers {
			p, err := network.ParseTexts(own, strings.Fields(l)...)
			if err != nil {
				t.Fatal(err)
			}
			p.Limits = network.Limits{Bandwidth: 1 << 20, Connections: uint32(10 + i)}
			in = append(in, network.Layer{Source: network.Source("party " + l), Policy: p})
		}
		here := network.Compiler{Catalog: own, Node: node}
		want, err := here.Compile(in...)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := write(&wire{Buffer: &b}, frame{Program: &program{1, want.Layers}}); err != nil {
			t.Fatal(err)
		}
		f, err := read(&b)
		if err != nil {
			t.Fatal(err)
		}
		far := network.Compiler{Catalog: there, Node: node}
		got, err := far.Compile(f.Program.Layers...)
		if err != nil {
			t.Errorf("%q: %v", layers, err)
		} else if got.Digest() != want.Digest() {
			t.Errorf("%q: it became\n%s\nwant\n%s", layers, got, want)
		}
	}
}

// wire is a connection that nobody reads.
type wire struct{ *bytes.Buffer }

func (*wire) SetWriteDeadline(time.Time) error { return nil }

// TestFrames: frames that are too long, cut or no frames at all end the connection, and nothing is made of them.
func TestFrames(t *testing.T) {
	for name, b := range map[string]string{
		"long": "\xff\xff\xff\xff{}", "cut": "\x00\x00\x00\x09{\"Set\"", "no frame": "\x00\x00\x00\x02[]", "nothing": "",
	} {
		if f, err := read(strings.NewReader(b)); err == nil {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestServerRefuses: an edge of another version, of no network, or that says other things first.
func TestServerRefuses(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- NewServer(ServerConfig{}).Serve(ctx, ln) }()
	catalog, err := network.Builtin().Text()
	if err != nil {
		t.Fatal(err)
	}
	good := hello{Protocol: protocol, Dir: t.TempDir(), Catalog: catalog}
	for name, h := range map[string]*hello{
		"of another version": {Protocol: protocol + 1}, "no such file": &good, "services": {Protocol: protocol, Dir: good.Dir, Catalog: json.RawMessage(`"x"`)},
		"": nil,
	} {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		if err := write(c, frame{ID: 7, Hello: h, Recheck: "x"}); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		f, err := read(c)
		switch {
		case h == nil && err == nil:
			t.Errorf("an edge that names no network is answered %+v", f)
		case h == nil:
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case f.ID != 7 || f.Answer == nil || !strings.Contains(f.Answer.Err, strings.TrimPrefix(name, "of another ")):
			t.Errorf("%s: %+v", name, f.Answer)
		}
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%s: the connection goes on: %v", name, err)
		}
		c.Close()
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// exhausted is a listener that had no descriptors for a while.
type exhausted struct {
	net.Listener
	times int
}

func (e *exhausted) Accept() (net.Conn, error) {
	if e.times > 0 {
		e.times--
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return e.Listener.Accept()
}

// TestServerExhausted: a server without descriptors goes on, and takes an edge when it has some again.
func TestServerExhausted(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- NewServer(ServerConfig{}).Serve(ctx, &exhausted{ln, 2}) }()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := write(c, frame{ID: 1, Hello: &hello{Protocol: protocol + 1}}); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if f, err := read(c); err != nil || f.Answer == nil {
		t.Errorf("%+v %v", f, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestKeeper: what waits for an edge is bounded, and what is left out is counted.
func TestKeeper(t *testing.T) {
	var k keeper
	for range maxWaiting {
		k.keep(proxy.Event{Flow: proxy.Flow{Key: "a"}})
	}
	k.keep(proxy.Event{Flow: proxy.Flow{Key: "a"}, Suppressed: 2})
	k.keep(proxy.Event{Flow: proxy.Flow{Key: "b"}})
	got := k.take("a")
	if len(got) != maxWaiting || got[len(got)-1].Suppressed != 3 {
		t.Errorf("%d events, %d left out", len(got), got[len(got)-1].Suppressed)
	}
	if got := k.take("b"); got != nil {
		t.Errorf("%v", got)
	}
	k.keep(proxy.Event{Flow: proxy.Flow{Key: "b"}})
	k.drop("b")
	if k.n != 0 || len(k.of)+len(k.lost) != 0 {
		t.Errorf("it keeps %+v", k)
	}
}

// TestPlaces: an address is one sandbox's; who had it before is forgotten.
func TestPlaces(t *testing.T) {
	book := dns.NewBook(nil)
	c, err := New(Config{Dial: (&net.Dialer{}).DialContext, Book: book})
	if err != nil {
		t.Fatal(err)
	}
	prog, err := network.Compile()
	if err != nil {
		t.Fatal(err)
	}
	at := [2]netip.Addr{netip.MustParseAddr("100.64.0.1"), netip.MustParseAddr("fd00::1")}
	is := func(want string) {
		t.Helper()
		for _, a := range at {
			if key, ok := c.keyOf(a); key != want || ok != (want != "") {
				t.Errorf("%s is %q, want %q", a, key, want)
			}
		}
	}
	c.Answered("one", dns.Entry{Name: "x.example", Addr: at[0], Until: time.Now().Add(time.Hour)})
	for _, key := range []string{"one", "one", "two"} {
		if err := c.Set(Place{key, at, prog}); err != nil {
			t.Fatal(err)
		}
		is(key)
	}
	if _, ok := c.program("one"); ok || len(book.Entries("one")) != 0 {
		t.Error("who had the address before is still there")
	}
	c.Forget(at)
	is("")
	if _, ok := c.program("two"); ok {
		t.Error("it is not forgotten")
	}
	c.Forget(at)
}
