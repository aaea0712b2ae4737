package apiserver_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// program serves HTTP on the other end of a tunnel and tells what it got.
func program(seen chan<- *http.Request) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		br := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			switch {
			case r.Header.Get("Upgrade") == "echo": // as a WebSocket would
				seen <- r
				fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
				_, _ = io.Copy(c, br)
				return
			case r.URL.Path == "/events": // server-sent events: the next only when the test asks
				seen <- r
				fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n7\r\ndata: 1\r\n")
				return
			default:
				n, _ := io.Copy(io.Discard, r.Body)
				r.ContentLength = n
				seen <- r
				body := "hello"
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nSet-Cookie: app=1\r\n\r\n%s", len(body), body)
			}
		}
	}
}

func (r *rig) token(t *testing.T, id string, port int) (token, address string) {
	resp, err := r.bearer().Get(fmt.Sprintf("%s/v1/sandboxes/%s/tcp/%d/url", r.api.URL, id, port))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out struct{ URL, Token string }
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || out.Token == "" {
		t.Fatal(resp.Status, err)
	}
	return out.Token, out.URL
}

func TestPorts(t *testing.T) {
	r := newRig(t, "aaaa")
	ids := r.edges[0].add(2)
	seen := make(chan *http.Request, 16)
	r.edges[0].port = program(seen)
	token, address := r.token(t, ids[0], 8000)
	if !strings.HasPrefix(address, "http://8000-"+ids[0]+".localhost:7778/?dsec_port_token=") {
		t.Errorf("address %s", address)
	}
	host := "8000-" + ids[0] + ".example.com"

	get := func(header map[string]string, path string) (int, string, *http.Request) {
		q, _ := http.NewRequest("POST", r.ports.URL+path, strings.NewReader(strings.Repeat("b", 1<<20)))
		for k, v := range header {
			if k == "Host" {
				q.Host = v
			} else {
				q.Header.Set(k, v)
			}
		}
		resp, err := http.DefaultTransport.RoundTrip(q)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		select {
		case in := <-seen:
			return resp.StatusCode, string(b), in
		default:
			return resp.StatusCode, string(b), nil
		}
	}

	// By host and by headers; nothing of the platform's comes through, and the rest does.
	for name, h := range map[string]map[string]string{
		"host":    {"Host": host, "Dsec-Port-Token": token},
		"headers": {"Dsec-Sandbox-Id": ids[0], "Dsec-Sandbox-Port": "8000", "Dsec-Port-Token": token},
		"cookie":  {"Host": host, "Cookie": "a=b; dsec_port_token=" + token + "; dsec_session=s; c=d"},
		"query":   {"Host": host, "_": ""},
	} {
		path := "/p?q=1"
		if name == "query" {
			path += "&dsec_port_token=" + token
		}
		h["Authorization"], h["X-Api-Key"], h["X-Other"], h["X-Oops"] = "Bearer "+r.key, r.key, "kept", "a "+r.key
		status, body, in := get(h, path)
		if status != 200 || body != "hello" || in == nil {
			t.Fatalf("%s: %d %s", name, status, body)
		}
		if in.URL.String() != "/p?q=1" || in.ContentLength != 1<<20 || in.Header.Get("X-Other") != "kept" || (name != "headers" && in.Host != host) {
			t.Errorf("%s: the program got %s, %d bytes, host %s, %v", name, in.URL, in.ContentLength, in.Host, in.Header)
		}
		if name == "cookie" && in.Header.Get("Cookie") != "a=b; c=d" {
			t.Errorf("cookies: %q", in.Header.Get("Cookie"))
		}
		var all strings.Builder
		_ = in.Header.Write(&all)
		for _, secret := range []string{r.key, token, r.keyID, "dsec_session"} {
			if strings.Contains(all.String()+in.URL.String(), secret) {
				t.Errorf("%s: the program got %s", name, secret)
			}
		}
	}

	// The application's own credentials travel on, the platform's do not, in whatever place they stand.
	basic := func(user, password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}
	for name, c := range map[string]struct{ header, value, want string }{
		"bearer":           {"Authorization", "Bearer of-the-application", "Bearer of-the-application"},
		"basic":            {"Authorization", basic("me", "secret"), basic("me", "secret")},
		"digest":           {"Authorization", `Digest username="me", uri="/p"`, `Digest username="me", uri="/p"`},
		"key header":       {"X-Api-Key", "app-1234", "app-1234"},
		"our key":          {"Authorization", "Bearer " + r.key, ""},
		"our key alone":    {"Authorization", r.key, ""},
		"in capitals":      {"Authorization", "bearer " + strings.ToUpper(r.key), ""},
		"as password":      {"Authorization", basic("x", r.key), ""},
		"as user":          {"Authorization", basic(r.key, ""), ""},
		"unreadable basic": {"Authorization", "Basic !!!", ""},
		"our key header":   {"X-Api-Key", r.key, ""},
		"port token":       {"Authorization", "Bearer " + token, ""},
		"by proxy":         {"Proxy-Authorization", "Basic bWU6c2VjcmV0", ""},
		"cookie":           {"Cookie", "a=b; c=" + r.key, "a=b"},
	} {
		_, _, in := get(map[string]string{"Host": host, "Dsec-Port-Token": token, c.header: c.value}, "/p?q=%20&k="+r.key)
		if in == nil || in.Header.Get(c.header) != c.want || in.URL.String() != "/p?q=+" {
			t.Errorf("%s: the program got %v", name, in)
		}
	}

	other := string(sandbox.NewID("zzzz"))
	zToken, _ := r.token(t, other, 8000)
	closed, _ := r.token(t, ids[0], 8001)
	for name, c := range map[string]struct {
		h      map[string]string
		status int
	}{
		"no token":              {map[string]string{"Host": host}, 401},
		"API key only":          {map[string]string{"Host": host, "Authorization": "Bearer " + r.key, "X-Api-Key": r.key}, 401},
		"token of other port":   {map[string]string{"Host": "8001-" + ids[0] + ".x", "Dsec-Port-Token": token}, 401},
		"of another sandbox":    {map[string]string{"Host": "8000-" + ids[1] + ".x", "Dsec-Port-Token": token}, 401},
		"no such host":          {map[string]string{"Host": "localhost", "Dsec-Port-Token": token}, 400},
		"bad port":              {map[string]string{"Host": "99999-" + ids[0] + ".x", "Dsec-Port-Token": token}, 400},
		"nobody's sandbox":      {map[string]string{"Host": "8000-" + other + ".x", "Dsec-Port-Token": zToken}, 404},
		"nothing listens there": {map[string]string{"Host": "8001-" + ids[0] + ".x", "Dsec-Port-Token": closed}, 503},
	} {
		if status, body, in := get(c.h, "/"); status != c.status || in != nil {
			t.Errorf("%s: %d %s, reached: %v", name, status, body, in != nil)
		}
	}
}

// TestPortsBrowser opens the address as a browser does: the token moves into a cookie.
func TestPortsBrowser(t *testing.T) {
	r := newRig(t, "aaaa")
	id := r.edges[0].add(1)[0]
	seen := make(chan *http.Request, 4)
	r.edges[0].port = program(seen)
	token, _ := r.token(t, id, 8000)
	target, _ := url.Parse(r.ports.URL)
	jar, _ := cookiejar.New(nil)
	tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("tcp", target.Host) }}
	defer tr.CloseIdleConnections()
	browser := &http.Client{Jar: jar, Transport: tr}
	base := "http://8000-" + id + ".localhost"
	for _, path := range []string{"/a?x=1&dsec_port_token=" + token, "/b"} {
		resp, err := browser.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 || strings.Contains(resp.Request.URL.String(), token) {
			t.Fatalf("%s: %s at %s", path, resp.Status, resp.Request.URL)
		}
		<-seen
	}
	// A path that looks like another host stays on this one.
	noFollow := &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := noFollow.Get(base + "//evil.example/?dsec_port_token=" + token)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if loc := resp.Header.Get("Location"); strings.HasPrefix(loc, "//") || !strings.HasPrefix(loc, "/") {
		t.Errorf("redirect to %q", loc)
	}
}

func TestPortsStream(t *testing.T) {
	r := newRig(t, "aaaa")
	id := r.edges[0].add(1)[0]
	seen := make(chan *http.Request, 4)
	r.edges[0].port = program(seen)
	token, _ := r.token(t, id, 8000)
	u, _ := url.Parse(r.ports.URL)
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: 8000-%s.x\r\nConnection: Upgrade\r\nUpgrade: echo\r\nDsec-Port-Token: %s\r\n\r\n", id, token)
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp, err)
	}
	for _, word := range []string{"ping", "pong"} {
		if _, err := c.Write([]byte(word)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(br, got); err != nil || string(got) != word {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	// The first event arrives though the answer has not ended (it breaks, which is an error, not its end).
	q, _ := http.NewRequest("GET", r.ports.URL+"/events", nil)
	q.Host = "8000-" + id + ".x"
	q.Header.Set("Dsec-Port-Token", token)
	resp, err = http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if string(b) != "data: 1" || err == nil {
		t.Errorf("got %q, %v", b, err)
	}
}
