package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
)

func parse(s string) (*request, error) {
	return readRequest(bufio.NewReader(strings.NewReader(s)))
}

func TestRequestsRead(t *testing.T) {
	for s, want := range map[string]request{
		"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n":                                               {host: "example.org"},
		"GET / HTTP/1.0\r\nhost:example.org:8080 \r\n\r\n":                                          {host: "example.org", port: 8080},
		"POST /a?b HTTP/1.1\r\nHost: example.org\r\nContent-Length: 12\r\n\r\n":                     {host: "example.org", length: 12},
		"POST / HTTP/1.1\r\nHost: example.org\r\nTransfer-Encoding: Chunked\r\n\r\n":                {host: "example.org", length: chunked},
		"GET http://Example.org/x HTTP/1.1\r\nHost: example.org\r\n\r\n":                            {host: "example.org"},
		"OPTIONS * HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n":                      {host: "example.org", last: true},
		"GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n":                                          {host: "2001:db8::1", port: 80},
		"GET / HTTP/1.1\r\nHost: 203.0.113.1\r\nConnection: keep-alive, TE\r\n\r\n":                 {host: "203.0.113.1"},
		"GET / HTTP/1.1\r\nHost: example.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n":  {host: "example.org", upgrade: true},
		"PUT / HTTP/1.1\r\nHost: example.org\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n":  {host: "example.org", length: 1, expect: true},
		"GET / HTTP/1.1\r\nX-Note: caf\xc3\xa9 \t ok\r\nHost: example.org\r\nX-Empty:\r\n\r\n":      {host: "example.org"},
		"GET / HTTP/1.1\r\nHost: example.org\r\nCookie: " + strings.Repeat("x", 20000) + "\r\n\r\n": {host: "example.org"},
	} {
		q, err := parse(s)
		if err != nil {
			t.Errorf("%.60q: %v", s, err)
			continue
		}
		if q.host != want.host || q.port != want.port || q.length != want.length || q.last != want.last || q.upgrade != want.upgrade || q.expect != want.expect {
			t.Errorf("%.60q: %+v", s, q)
		}
		if out := strings.Replace(s, "Expect: 100-continue\r\n", "", 1); string(q.head) != out {
			t.Errorf("%.60q is passed on as %.60q", s, q.head)
		}
	}
}

// Everything that some server could read in another way.
func TestRequestsRefused(t *testing.T) {
	const host = "Host: example.org\r\n"
	for _, s := range []string{
		"GET / HTTP/1.1\n" + host + "\r\n",
		"GET / HTTP/1.1\r\nHost: example.org\n\r\n",
		"GET / HTTP/1.1\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + host + "\r\n",
		"GET / HTTP/1.1\r\n" + host + "Host: other.example\r\n\r\n",
		"GET / HTTP/1.1\r\nHost : example.org\r\n\r\n",
		"GET / HTTP/1.1\r\n Host: example.org\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + "X: a\r\n folded\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: example.org, other.example\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: example.org\x00.other.example\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: user@example.org\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: example.org:\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: example.org:0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: example.org:+80\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: [fe80::1%25eth0]\r\n\r\n",
		"GET / HTTP/1.1\r\nHost:\r\n\r\n",
		"GET  / HTTP/1.1\r\n" + host + "\r\n",
		"GET / HTTP/1.1 \r\n" + host + "\r\n",
		"GET /\r\n" + host + "\r\n",
		"GET / HTTP/1.2\r\n" + host + "\r\n",
		"GET / http/1.1\r\n" + host + "\r\n",
		"GET /\x7f HTTP/1.1\r\n" + host + "\r\n",
		"G@T / HTTP/1.1\r\n" + host + "\r\n",
		"GET example.org HTTP/1.1\r\n" + host + "\r\n",
		"GET https://example.org/ HTTP/1.1\r\n" + host + "\r\n",
		"GET http://other.example/ HTTP/1.1\r\n" + host + "\r\n",
		"GET http://example.org@other.example/ HTTP/1.1\r\n" + host + "\r\n",
		"GET http://example.org:81/ HTTP/1.1\r\n" + host + "\r\n",
		"GET http://other.example\\@example.org/ HTTP/1.1\r\n" + host + "\r\n",
		"CONNECT example.org:443 HTTP/1.1\r\n" + host + "\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\nContent-Length: 5\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 5, 5\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Content-Length: +5\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 0x5\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Content-Length:\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding:\x0bchunked\r\n\r\n",
		"POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + "Connection: close, Host\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + "Connection: content-length\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + "Upgrade: h2c\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + "Upgrade: TLS/1.0, HTTP/1.1\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\n" + host + "Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + "Connection: Upgrade\r\nUpgrade: websocket, tls/1.2\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + "Connection: Upgrade\r\nUpgrade: connect-udp\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Upgrade: websocket\r\nContent-Length: 5\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + "Content-Length: 5\r\n\r\n",
		"HEAD / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Expect: 200-ok\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + "X\x01: a\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + "X: a\rb\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + ": a\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + "nocolon\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + "Cookie: " + strings.Repeat("x", 70000) + "\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + strings.Repeat("X: y\r\n", 300) + "\r\n",
		"GET / HTTP/1.1\r\n" + host,
	} {
		if q, err := parse(s); err == nil {
			t.Errorf("%.80q is accepted: %+v", s, q)
		}
	}
}

// What is accepted, the standard library reads as going to the same host, with a body of the same length.
func FuzzRequest(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"))
	f.Add([]byte("POST http://a.b:80/ HTTP/1.1\r\nHost: A.b:80\r\nContent-Length: 3\r\n\r\nabc"))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n"))
	f.Add([]byte("GET / HTTP/1.0\r\nHost: [::1]:80\r\nUpgrade: x\r\nExpect: 100-continue\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := readRequest(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(io.MultiReader(bytes.NewReader(q.head), strings.NewReader("0\r\n\r\n"))))
		if err != nil {
			return // it is stricter in places; what it refuses goes nowhere
		}
		host, _, err := splitHost(r.Host)
		if err != nil || !strings.EqualFold(host, q.host) {
			t.Fatalf("%q: Host is %q, and %q for another parser", b, q.host, r.Host)
		}
		if r.ContentLength != q.length {
			t.Fatalf("%q: length is %d, and %d for another parser", b, q.length, r.ContentLength)
		}
	})
}
