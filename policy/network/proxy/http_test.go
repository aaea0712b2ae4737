package proxy

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/policy/network/networktest"
)

func TestHTTPByName(t *testing.T) {
	n := start(t, nil)
	n.set("one.example", "three.example")
	one := n.inet.Site("one.example", networktest.V4(1))
	two := n.inet.Site("two.example", networktest.Addrs(one.V4...))
	n.inet.Site("three.example", networktest.Addrs(one.V4...))
	n.answer("one.example", one.V4...)
	n.answer("three.example", one.V4...)
	c := n.client(one.V4[0])
	for range 3 { // on one connection
		if got, err := n.get(c, "http://one.example/"); err != nil || got != "200 site=one.example host=one.example\n" {
			t.Errorf("%q %v", got, err)
		}
	}
	got, err := n.get(n.client(one.V4[0]), "http://two.example/")
	if err != nil || !strings.HasPrefix(got, "403 ") || !strings.Contains(got, "no rule allows two.example") {
		t.Errorf("%q %v", got, err)
	}
	if e := n.waitEvent(Refused); e.Name != "two.example" || e.Protocol != "http" {
		t.Errorf("%+v", e)
	}
	if got, err := n.get(n.client(one.V4[0]), "http://"+one.V4[0].String()+"/"); err != nil || !strings.HasPrefix(got, "403 ") {
		t.Errorf("by its address: %q %v", got, err)
	}
	n.waitEvent(Refused)

	// A second request on the connection, for a name that is allowed, and for one that is not.
	conn := n.dial(one.V4[0], 80)
	br := bufio.NewReader(conn)
	for _, host := range []string{"one.example", "three.example", "One.Example:80"} {
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		r, err := http.ReadResponse(br, nil)
		if err != nil || r.StatusCode != 200 {
			t.Fatalf("%s: %v %v", host, r, err)
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: two.example\r\n\r\n")
	if r, err := http.ReadResponse(br, nil); err == nil {
		t.Errorf("answered %v", r)
	}
	if e := n.waitEvent(Refused); e.Name != "two.example" {
		t.Errorf("%+v", e)
	}
	if r := two.Requests(); len(r) != 0 {
		t.Errorf("two.example was reached: %+v", r)
	}
}

// Requests hidden in the bodies of others, by every way that bodies can be told apart wrongly.
func TestSmuggling(t *testing.T) {
	n := start(t, nil)
	n.set("one.example")
	one := n.inet.Site("one.example", networktest.V4(1))
	two := n.inet.Site("two.example", networktest.Addrs(one.V4...))
	n.answer("one.example", one.V4...)
	const hidden = "GET /hidden HTTP/1.1\r\nHost: two.example\r\n\r\n"
	const post = "POST / HTTP/1.1\r\nHost: one.example\r\n"
	for what, s := range map[string]string{
		"length and chunks":    post + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"two lengths":          post + "Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + hidden,
		"odd coding":           post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + hidden,
		"pipelined":            "GET / HTTP/1.1\r\nHost: one.example\r\n\r\n" + hidden,
		"after a body":         post + "Content-Length: 3\r\n\r\nabc" + hidden,
		"after chunks":         post + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + hidden,
		"chunk extension LF":   post + "Transfer-Encoding: chunked\r\n\r\n3;a\nb\r\nabc\r\n0\r\n\r\n" + hidden,
		"chunk without CRLF":   post + "Transfer-Encoding: chunked\r\n\r\n3\r\nabcX0\r\n\r\n" + hidden,
		"chunk size with sign": post + "Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n" + hidden,
		"chunk size too long":  post + "Transfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n" + hidden,
		"trailer":              post + "Transfer-Encoding: chunked\r\n\r\n0\r\nHost: two.example\r\n\r\n",
		"upgrade refused":      "GET / HTTP/1.1\r\nHost: one.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + hidden,
		"upgrade later":        "GET / HTTP/1.1\r\nHost: one.example\r\n\r\nGET / HTTP/1.1\r\nHost: one.example\r\nUpgrade: x\r\n\r\n" + hidden,
		"after the last":       "GET / HTTP/1.1\r\nHost: one.example\r\nConnection: close\r\n\r\n" + hidden,
		"expectation":          post + "Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc" + hidden,
		"blank lines":          "GET / HTTP/1.1\r\nHost: one.example\r\n\r\n\r\n" + hidden,
		"line feed":            "GET / HTTP/1.1\r\nHost: one.example\r\nX: \nHost: two.example\r\n\r\n",
		"wrong port":           "GET / HTTP/1.1\r\nHost: one.example:8080\r\n\r\n",
	} {
		conn := n.dial(one.V4[0], 80)
		if _, err := io.WriteString(conn, s); err != nil {
			t.Fatal(err)
		}
		_ = conn.(*net.TCPConn).CloseWrite()
		b, _ := io.ReadAll(conn)
		if strings.Contains(string(b), "site=two") {
			t.Errorf("%s: %q", what, b)
		}
		conn.Close()
	}
	for n.server.Stats().Open > 0 {
		time.Sleep(time.Millisecond)
	}
	if r := two.Requests(); len(r) != 0 {
		t.Errorf("two.example was reached: %+v", r)
	}
	// All but the two whose hidden request is not read at all.
	if s := n.server.Stats(); s.Refused != 16 {
		t.Errorf("%+v", s)
	}
}

// Bodies of every kind arrive whole, in both directions, spliced or not.
func TestBodies(t *testing.T) {
	n := start(t, nil)
	n.set("one.example")
	one := n.inet.Site("one.example", networktest.V4(1), networktest.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		size, _ := io.Copy(h, r.Body)
		w.Header().Set("X-Sum", fmt.Sprintf("%d %x", size, h.Sum(nil)))
		_, _ = io.Copy(w, io.LimitReader(zeros{}, 5<<20))
	})))
	n.answer("one.example", one.V4...)
	data := make([]byte, 5<<20)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%d %x", len(data), sha256.Sum256(data))
	for _, scheme := range []string{"http", "https"} {
		for _, kind := range []string{"length", "chunked", "expect"} {
			req, err := http.NewRequest("POST", scheme+"://one.example/", bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			switch kind {
			case "chunked":
				req.ContentLength = -1
				req.Body = io.NopCloser(struct{ io.Reader }{bytes.NewReader(data)})
				req.Trailer = http.Header{"X-After": {"all"}}
			case "expect":
				req.Header.Set("Expect", "100-continue")
			}
			c := n.client(one.V4[0])
			c.Transport.(*http.Transport).ExpectContinueTimeout = 20 * time.Second
			r, err := c.Do(req)
			if err != nil {
				t.Errorf("%s %s: %v", scheme, kind, err)
				continue
			}
			got, err := io.Copy(io.Discard, r.Body)
			if r.Header.Get("X-Sum") != want || got != 5<<20 || err != nil {
				t.Errorf("%s %s: sent %s, arrived %s; received %d %v", scheme, kind, want, r.Header.Get("X-Sum"), got, err)
			}
			r.Body.Close()
			c.CloseIdleConnections()
			if e := n.waitEvent(Ended); e.Sent < 5<<20 || e.Received < 5<<20 {
				t.Errorf("%s %s: %+v", scheme, kind, e)
			}
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestUpgrade(t *testing.T) {
	n := start(t, nil)
	n.set("one.example")
	one := n.inet.Site("one.example", networktest.V4(1), networktest.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, rw)
	})))
	n.answer("one.example", one.V4...)
	conn := n.dial(one.V4[0], 80)
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: one.example\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n\x00\x01GET / HTTP/1.1\r\n")
	br := bufio.NewReader(conn)
	r, err := http.ReadResponse(br, nil)
	if err != nil || r.StatusCode != 101 {
		t.Fatal(r, err)
	}
	_ = conn.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(br); err != nil || string(b) != "\x00\x01GET / HTTP/1.1\r\n" {
		t.Errorf("%q %v", b, err)
	}
}

func TestOpenWithoutOneService(t *testing.T) {
	n := start(t, nil)
	n.set("open", "!github")
	one := n.inet.Site("one.example", networktest.V4(1))
	hub := n.inet.Site("github.com", networktest.V4(1))
	// Nothing was answered: addresses are open in their own right.
	if got, err := n.get(n.client(one.V4[0]), "https://one.example/"); err != nil || !strings.HasPrefix(got, "200") {
		t.Errorf("%q %v", got, err)
	}
	if got, err := n.get(n.client(one.V4[0]), "http://"+one.V4[0].String()+"/"); err != nil || !strings.HasPrefix(got, "200") {
		t.Errorf("by address: %q %v", got, err)
	}
	if _, err := n.get(n.client(hub.V4[0]), "https://github.com/"); err == nil {
		t.Error("github.com was reached")
	}
	if e := n.waitEvent(Refused); e.Rule != "!github" {
		t.Errorf("%+v", e)
	}
	if r := hub.Requests(); len(r) != 0 {
		t.Errorf("%+v", r)
	}
}

// A client that wants the connection to end gets all of a slow answer first, and the server notices no end before.
func TestLastRequest(t *testing.T) {
	n := start(t, nil)
	n.set("one.example")
	arrived := make(chan struct{})
	one := n.inet.Site("one.example", networktest.V4(1), networktest.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "first ")
		w.(http.Flusher).Flush()
		<-arrived
		if err := r.Context().Err(); err != nil {
			fmt.Fprint(w, err)
			return
		}
		fmt.Fprint(w, "second")
	})))
	n.answer("one.example", one.V4...)
	conn := n.dial(one.V4[0], 80)
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: one.example\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\n")
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, len("first "))
	if _, err := io.ReadFull(r.Body, first); err != nil {
		t.Fatal(err)
	}
	close(arrived)
	if rest, err := io.ReadAll(r.Body); err != nil || string(rest) != "second" {
		t.Errorf("%q %v", rest, err)
	}
	if e := n.waitEvent(Ended); e.Name != "one.example" {
		t.Errorf("%+v", e)
	}
}
