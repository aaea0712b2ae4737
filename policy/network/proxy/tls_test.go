package proxy

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/networktest"
)

func TestTLSByName(t *testing.T) {
	n := start(t, nil)
	n.set("one.example", "six.example")
	one := n.inet.Site("one.example")
	two := n.inet.Site("two.example", networktest.Addrs(one.Addrs()...))
	six := n.inet.Site("six.example", networktest.V6(1))
	n.answer("one.example", one.Addrs()...)
	n.answer("six.example", six.V6...)

	for _, a := range one.Addrs() {
		c := n.client(a)
		if got, err := n.get(c, "https://one.example/"); err != nil || got != "200 site=one.example host=one.example\n" {
			t.Errorf("%s: %q %v", a, got, err)
		}
		c.CloseIdleConnections()
		e := n.waitEvent(Ended)
		if e.Name != "one.example" || e.Protocol != "tls" || e.Destination != netip.AddrPortFrom(a, 443) || e.Sent < 200 || e.Received < 500 || e.Key != "sandbox-1" {
			t.Errorf("%+v", e)
		}
	}
	if got, err := n.get(n.client(six.V6[0]), "https://six.example/"); err != nil || !strings.HasPrefix(got, "200 site=six") {
		t.Errorf("IPv6 only: %q %v", got, err)
	}
	// Another tenant of the same address, allowed by nobody.
	if got, err := n.get(n.client(one.V4[0]), "https://two.example/"); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("two.example: %q %v", got, err)
	}
	if e := n.waitEvent(Refused); e.Name != "two.example" || e.Source != network.FromSpec || !strings.Contains(e.Why, "no rule allows two.example") {
		t.Errorf("%+v", e)
	}
	if r := two.Requests(); len(r) != 0 {
		t.Errorf("two.example was reached: %+v", r)
	}
	// An allowed name at an address that was not answered for it.
	if _, err := n.get(n.client(six.V6[0]), "https://one.example/"); err == nil {
		t.Error("one.example at six.example's address")
	}
	if e := n.waitEvent(Refused); !strings.Contains(e.Why, "was not answered for one.example") {
		t.Errorf("%+v", e)
	}
}

func TestTLSRefused(t *testing.T) {
	n := start(t, func(c *Config) { c.HelloTimeout = 2 * time.Second })
	n.set("one.example")
	one := n.inet.Site("one.example", networktest.V4(1))
	n.answer("one.example", one.V4...)
	named := clientHello(t, &tls.Config{ServerName: "one.example"})
	for what, c := range map[string]struct {
		say []byte
		why string
	}{
		"no name":          {clientHello(t, &tls.Config{InsecureSkipVerify: true}), "without a server name"},
		"encrypted hello":  {withExtension(named, extECH, []byte{0, 0, 1}), "encrypted TLS hello"},
		"old encrypted":    {withExtension(named, extOldESNI, []byte{0}), "encrypted TLS hello"},
		"half a hello":     {named[:100], "no TLS hello"},
		"neither":          {[]byte("\x00\x01\x02"), "neither TLS nor HTTP"},
		"an old hello":     {[]byte{0x80, 0x2e, 1, 3, 1}, "neither TLS nor HTTP"},
		"ssh":              {[]byte("ssh"), "neither TLS nor HTTP"},
		"silence":          {nil, "says nothing"},
		"http of a kind":   {[]byte("HELO mail\r\n"), "HTTP: a malformed request line"},
		"http/2":           {[]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "HTTP/2 without TLS"},
		"a proxy's client": {[]byte("CONNECT one.example:443 HTTP/1.1\r\nHost: one.example\r\n\r\n"), "CONNECT"},
	} {
		conn := n.dial(one.V4[0], 443)
		if _, err := conn.Write(c.say); err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(conn)
		if e := n.waitEvent(Refused); !strings.Contains(e.Why, c.why) {
			t.Errorf("%s: %+v", what, e)
		}
		if len(c.say) > 0 && c.say[0] == recordHandshake && !bytes.Equal(got, []byte{21, 3, 3, 0, 2, 2, 49}) {
			t.Errorf("%s: answered %x", what, got)
		}
	}
	if r := one.Requests(); len(r) != 0 {
		t.Errorf("%+v", r)
	}
	// A client that closes without a word is no event.
	n.dial(one.V4[0], 443).Close()
	for n.server.Stats().Open > 0 {
		time.Sleep(time.Millisecond)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.events) != 0 {
		t.Errorf("%+v", n.events)
	}
}

func TestOuterNameAccepted(t *testing.T) {
	n := start(t, func(c *Config) { c.AllowECH = true })
	n.set("one.example")
	a := netip.MustParseAddr("203.0.113.77")
	n.inet.AddAddr(a)
	ln, err := n.inet.Listen("tcp", "203.0.113.77:443")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	n.answer("one.example", a)
	hello := withExtension(clientHello(t, &tls.Config{ServerName: "one.example"}), extECH, []byte{0})
	conn := n.dial(a, 443)
	if _, err := conn.Write(hello); err != nil {
		t.Fatal(err)
	}
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	got := make([]byte, len(hello))
	if _, err := io.ReadFull(server, got); err != nil || !bytes.Equal(got, hello) {
		t.Errorf("%v", err)
	}
}

// A hello in many small pieces, in many packets.
func TestHelloInPieces(t *testing.T) {
	n := start(t, nil)
	n.set("one.example")
	one := n.inet.Site("one.example", networktest.V4(1))
	n.answer("one.example", one.V4...)
	conn := n.dial(one.V4[0], 443)
	c := tls.Client(&pieces{Conn: conn, n: 7}, &tls.Config{ServerName: "one.example", RootCAs: n.inet.CA.Pool})
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "GET / HTTP/1.0\r\nHost: one.example\r\n\r\n")
	if b, err := io.ReadAll(c); err != nil || !strings.Contains(string(b), "site=one.example") {
		t.Errorf("%q %v", b, err)
	}
}

// pieces writes n bytes at a time; the first write, the hello, goes out in small records too.
type pieces struct {
	net.Conn
	n     int
	first bool
}

func (p *pieces) Write(b []byte) (int, error) {
	out := b
	if !p.first {
		p.first = true
		out = inRecords(b, 50)
	}
	for len(out) > 0 {
		m := min(p.n, len(out))
		if _, err := p.Conn.Write(out[:m]); err != nil {
			return 0, err
		}
		out = out[m:]
	}
	return len(b), nil
}

// A server that asks for a second hello gets it, if it has the same name.
func TestSecondHello(t *testing.T) {
	n := start(t, nil)
	n.set("one.example")
	a := netip.MustParseAddr("203.0.113.77")
	n.inet.AddAddr(a)
	n.answer("one.example", a)
	ln, err := n.inet.Listen("tcp", "203.0.113.77:443")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer ln.Close()
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			leaf, err := n.inet.CA.Leaf("one.example")
			if err != nil {
				t.Error(err)
				return
			}
			// The client offers a key for another curve first.
			s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*leaf}, CurvePreferences: []tls.CurveID{tls.CurveP384}})
			_ = s.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = io.Copy(s, s)
			s.Close()
		}
	})
	conn := n.dial(a, 443)
	c := tls.Client(conn, &tls.Config{ServerName: "one.example", RootCAs: n.inet.CA.Pool, CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}})
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	if !c.ConnectionState().HelloRetryRequest {
		t.Fatal("the server did not ask for a second hello")
	}
	fmt.Fprint(c, "ping")
	buf := make([]byte, 4)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "ping" {
		t.Errorf("%q %v", buf, err)
	}
	c.Close()

	conn = n.dial(a, 443)
	hello := clientHello(t, &tls.Config{ServerName: "one.example", CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}})
	if _, err := conn.Write(hello); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 50)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(clientHello(t, &tls.Config{ServerName: "two.example"})); err != nil {
		t.Fatal(err)
	}
	if e := n.waitEvent(Refused); !strings.Contains(e.Why, "another name") {
		t.Errorf("%+v", e)
	}
}

// A client that has said all it wants ends its side, and is answered.
func TestHalfClose(t *testing.T) {
	n := start(t, nil)
	n.set("one.example:443,80")
	a := netip.MustParseAddr("203.0.113.77")
	n.inet.AddAddr(a)
	n.answer("one.example", a)
	ln, err := n.inet.Listen("tcp", "203.0.113.77:443")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn := n.dial(a, 443)
	if _, err := conn.Write(clientHello(t, &tls.Config{ServerName: "one.example"})); err != nil {
		t.Fatal(err)
	}
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	_, _ = server.Write([]byte{recordData, 3, 3, 0, 1, 0})
	fmt.Fprint(conn, "the end")
	_ = conn.(*net.TCPConn).CloseWrite()
	b, err := io.ReadAll(server)
	if err != nil || !bytes.HasSuffix(b, []byte("the end")) {
		t.Errorf("%q %v", b, err)
	}
	fmt.Fprint(server, "answer")
	server.Close()
	if b, err = io.ReadAll(conn); err != nil || !bytes.HasSuffix(b, []byte("answer")) {
		t.Errorf("%q %v", b, err)
	}
}
