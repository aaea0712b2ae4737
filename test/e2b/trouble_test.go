package e2b

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	pb "github.com/opendsec/dsec/cluster/e2b/envd/filesystem"
	"github.com/opendsec/dsec/cluster/e2b/envd/filesystem/filesystemconnect"
	"github.com/opendsec/dsec/cluster/e2b/envd/process"
	"github.com/opendsec/dsec/cluster/e2b/envd/process/processconnect"
)

// inside is a sandbox as a client without a package reaches it.
type inside struct {
	n         *node
	id, token string
	http      *http.Client
}

func (n *node) inside(t *testing.T, template string) *inside {
	t.Helper()
	made := n.post(t, "/v2/sandboxes", fmt.Sprintf(`{"templateID":%q,"timeout":300}`, template))
	b := &inside{n: n, id: between(made, `"sandboxID":"`, `"`), token: between(made, `"envdAccessToken":"`, `"`), http: http.DefaultClient}
	t.Cleanup(func() {
		_, err := n.Client.Sandboxes.StopSandbox(context.Background(), &dsecv1.StopSandboxRequest{SandboxId: b.id})
		if err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *inside) header(h http.Header, port string) {
	h.Set("E2b-Sandbox-Id", b.id)
	h.Set("E2b-Sandbox-Port", port)
	h.Set("X-Access-Token", b.token)
}

func (b *inside) do(t *testing.T, method, path string, body io.Reader) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, b.n.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	b.header(req.Header, "49983")
	resp, err := b.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(got)
}

// call is the context of a call of one of the services.
func (b *inside) call(ctx context.Context) context.Context {
	ctx, c := connect.NewClientContext(ctx)
	b.header(c.RequestHeader(), "49983")
	return ctx
}

// run runs a command and returns its output.
func (b *inside) run(t *testing.T, script string) string {
	t.Helper()
	s, err := processconnect.NewProcessClient(b.http, b.n.url).Start(b.call(t.Context()), &process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-c", script}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var out bytes.Buffer
	for s.Receive() {
		e := s.Msg().GetEvent()
		out.Write(e.GetData().GetStdout())
		if end := e.GetEnd(); end != nil && end.GetExitCode() != 0 {
			t.Fatalf("%s: %v\n%s", script, end, out.String())
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestTrouble is what goes wrong, or is too much, on a whole node.
func TestTrouble(t *testing.T) {
	n := startNode(t)
	_, err := n.Client.Environments.CreateEnvironment(t.Context(), &dsecv1.CreateEnvironmentRequest{Environment: &dsecv1.NamedEnvironment{
		Name: "small", Stack: &dsecv1.Environment{Base: "debian"}, Limits: &dsecv1.Limits{DiskBytes: 32 << 20},
	}})
	if err != nil {
		t.Fatal(err)
	}
	b := n.inside(t, "base")
	t.Run("full disk", func(t *testing.T) {
		t.Parallel() // it waits
		fullDisk(t, n.inside(t, "small"))
	})
	t.Run("watchers", func(t *testing.T) { watchers(t, b) })
	t.Run("bytes", func(t *testing.T) { oddBytes(t, b) })
	t.Run("cut", func(t *testing.T) { cut(t, b) })
	t.Run("HTTP/2", func(t *testing.T) { http2(t, b) })
	t.Run("ports", func(t *testing.T) { ports(t, b) })
	t.Run("gone", func(t *testing.T) { goneSandbox(t, n) })
}

// goneSandbox: one that has ended is not found on every path of the data face, and no path is an error of the platform's.
func goneSandbox(t *testing.T, n *node) {
	b := n.inside(t, "base")
	if _, err := n.Client.Sandboxes.StopSandbox(t.Context(), &dsecv1.StopSandboxRequest{SandboxId: b.id}); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][3]string{ // method, path, media
		{"GET", "/health", ""}, {"GET", "/files?path=/x", ""}, {"POST", "/files?path=/x", "application/octet-stream"},
		{"POST", "/filesystem.Filesystem/Stat", "application/json"}, {"POST", "/filesystem.Filesystem/ListDir", "application/json"},
		{"POST", "/filesystem.Filesystem/MakeDir", "application/json"}, {"POST", "/filesystem.Filesystem/Remove", "application/json"},
		{"POST", "/filesystem.Filesystem/CreateWatcher", "application/json"}, {"POST", "/process.Process/CloseStdin", "application/json"},
	} {
		body := `{"path":"/x"}`
		if strings.HasSuffix(c[1], "CloseStdin") {
			body = `{"process":{"pid":1}}`
		}
		req, err := http.NewRequestWithContext(t.Context(), c[0], n.url+c[1], strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		b.header(req.Header, "49983")
		req.Header.Set("Content-Type", c[2])
		resp, err := b.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if s := resp.StatusCode; s != http.StatusBadGateway && s != http.StatusServiceUnavailable && s != http.StatusNotFound || !strings.Contains(string(got), "not found") && !strings.Contains(string(got), "no process") {
			t.Errorf("%s %s: %d %s", c[0], c[1], s, got)
		}
	}
}

// fullDisk: an upload that does not fit is 507, leaves nothing of itself, and the sandbox goes on.
func fullDisk(t *testing.T, b *inside) {
	status, got := b.do(t, "POST", "/files?path=/tmp/big", io.LimitReader(zeros{}, 64<<20))
	if status != http.StatusInsufficientStorage {
		t.Errorf("an upload that does not fit: %d %.300s", status, got)
	}
	// What was given up is counted until the pool's file system has written that down, half a minute at most.
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		status, got := b.do(t, "POST", "/files?path=/tmp/small", strings.NewReader("fits"))
		if status == http.StatusOK {
			break
		}
		if status != http.StatusInsufficientStorage || time.Now().After(end) {
			t.Fatalf("afterwards: %d %s", status, got)
		}
	}
	if got := b.run(t, "ls /tmp"); got != "small\n" {
		t.Errorf("left: %q", got)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// watchers: a thousand of them in one sandbox hear of an event; beyond the bound one is refused, and room is made by removing.
func watchers(t *testing.T, b *inside) {
	fs := filesystemconnect.NewFilesystemClient(b.http, b.n.url)
	b.run(t, "mkdir /tmp/watched")
	const count = 1024
	ids := make([]string, count)
	var wg sync.WaitGroup
	turns := make(chan struct{}, 16)
	each := func(f func(k int) error) {
		for k := range ids {
			turns <- struct{}{}
			wg.Go(func() {
				defer func() { <-turns }()
				if err := f(k); err != nil {
					t.Errorf("watcher %d: %v", k, err)
				}
			})
		}
		wg.Wait()
	}
	each(func(k int) error {
		w, err := fs.CreateWatcher(b.call(t.Context()), &pb.CreateWatcherRequest{Path: "/tmp/watched", Recursive: k%2 == 0})
		ids[k] = w.GetWatcherId()
		return err
	})
	if t.Failed() {
		return
	}
	if _, err := fs.CreateWatcher(b.call(t.Context()), &pb.CreateWatcherRequest{Path: "/tmp/watched"}); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	b.run(t, "touch /tmp/watched/it")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	each(func(k int) error {
		for ctx.Err() == nil {
			got, err := fs.GetWatcherEvents(b.call(ctx), &pb.GetWatcherEventsRequest{WatcherId: ids[k]})
			if err != nil {
				return err
			}
			for _, e := range got.GetEvents() {
				if e.GetName() == "it" && e.GetType() == pb.EventType_EVENT_TYPE_CREATE {
					return nil
				}
			}
		}
		return ctx.Err()
	})
	each(func(k int) error {
		_, err := fs.RemoveWatcher(b.call(t.Context()), &pb.RemoveWatcherRequest{WatcherId: ids[k]})
		return err
	})
	if _, err := fs.GetWatcherEvents(b.call(t.Context()), &pb.GetWatcherEventsRequest{WatcherId: ids[0]}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a removed one: %v", err)
	}
}

// oddBytes: contents and output of all bytes come through as they are; names that are not UTF-8 break no listing; `..` stays inside.
func oddBytes(t *testing.T, b *inside) {
	all := make([]byte, 256)
	for k := range all {
		all[k] = byte(k)
	}
	if status, got := b.do(t, "POST", "/files?path=/tmp/all", bytes.NewReader(all)); status != 200 {
		t.Fatalf("%d %s", status, got)
	}
	if _, got := b.do(t, "GET", "/files?path=/tmp/all", nil); got != string(all) {
		t.Errorf("read %q", got)
	}
	if got := b.run(t, "cat /tmp/all"); got != string(all) {
		t.Errorf("output %q", got)
	}
	b.run(t, `mkdir /tmp/odd && cd /tmp/odd && touch "$(printf 'a\377b')" plain`)
	got, err := filesystemconnect.NewFilesystemClient(b.http, b.n.url).ListDir(b.call(t.Context()), &pb.ListDirRequest{Path: "/tmp/odd"})
	if err != nil || len(got.GetEntries()) != 2 {
		t.Errorf("list: %v, %v", got, err)
	}
	if status, got := b.do(t, "GET", "/files?path="+url.QueryEscape("../../../../../../etc/hostname"), nil); status != 200 || strings.TrimSpace(got) == hostname(t) {
		t.Errorf("..: %d %s", status, got)
	}
	if status, got := b.do(t, "GET", "/files?path=%2Ftmp%2F%FF", nil); status != 404 {
		t.Errorf("a name that is not UTF-8: %d %s", status, got)
	}
}

func hostname(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// cut: an upload that breaks off in the middle leaves the old file, and a stream that its client leaves does not end the program.
func cut(t *testing.T, b *inside) {
	b.run(t, "echo old > /tmp/cut")
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, "POST", b.n.url+"/files?path=/tmp/cut", r)
	if err != nil {
		t.Fatal(err)
	}
	b.header(req.Header, "49983")
	done := make(chan error, 1)
	go func() {
		resp, err := b.http.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		done <- err
	}()
	if _, err := w.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	cancel()
	w.CloseWithError(context.Canceled) // a transport may wait for the body that it is reading
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the upload ended with %v", err)
	}
	if got := b.run(t, "cat /tmp/cut"); got != "old\n" {
		t.Errorf("after an upload that broke off: %.20q", got)
	}
	ctx, cancel = context.WithCancel(t.Context())
	s, err := processconnect.NewProcessClient(b.http, b.n.url).Start(b.call(ctx), &process.StartRequest{Process: &process.ProcessConfig{
		Cmd: "/bin/bash", Args: []string{"-c", "until [ -e /tmp/go-on ]; do sleep 0.01; done; touch /tmp/went-on"},
	}})
	if err != nil || !s.Receive() {
		t.Fatalf("start: %v", err)
	}
	cancel()
	s.Close()
	b.run(t, "touch /tmp/go-on; until [ -e /tmp/went-on ]; do sleep 0.01; done")
}

// http2: both services and files over HTTP/2.
func http2(t *testing.T, b *inside) {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	two := &inside{b.n, b.id, b.token, &http.Client{Transport: tr}}
	if got := two.run(t, "echo two"); got != "two\n" {
		t.Errorf("%q", got)
	}
	if status, got := two.do(t, "POST", "/files?path=/tmp/two", strings.NewReader("2")); status != 200 {
		t.Errorf("%d %s", status, got)
	}
}

// ports: events come as they are sent, and an upgraded connection carries bytes both ways.
func ports(t *testing.T, b *inside) {
	script, err := os.ReadFile("testdata/ports.py")
	if err != nil {
		t.Fatal(err)
	}
	if status, got := b.do(t, "POST", "/files?path=/tmp/ports.py", bytes.NewReader(script)); status != 200 {
		t.Fatalf("%d %s", status, got)
	}
	b.run(t, `python3 /tmp/ports.py >/dev/null 2>&1 & until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8000))' 2>/dev/null; do sleep 0.05; done`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", b.n.url+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "8000-" + b.id + ".localhost"
	b.run(t, "touch /tmp/event-0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for k := range 3 {
		line, err := lines.ReadString('\n')
		if err != nil || line != fmt.Sprintf("data: %d\n", k) {
			t.Fatalf("event %d: %q, %v", k, line, err)
		}
		_, _ = lines.ReadString('\n')
		b.run(t, fmt.Sprintf("touch /tmp/event-%d", k+1)) // the next one is sent only now
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.n.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	key := base64.StdEncoding.EncodeToString(make([]byte, 16))
	fmt.Fprintf(conn, "GET /socket HTTP/1.1\r\nHost: 8000-%s.localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\n", b.id, key)
	in := bufio.NewReader(conn)
	up, err := http.ReadResponse(in, nil)
	if err != nil || up.StatusCode != http.StatusSwitchingProtocols || up.Header.Get("Sec-WebSocket-Accept") == "" {
		t.Fatalf("upgrade: %v %v", up, err)
	}
	for _, text := range []string{"\x81\x02hi", "\x00\xff\x80", strings.Repeat("x", 100_000)} {
		got := make([]byte, len(text))
		go func() { _, _ = io.WriteString(conn, text) }()
		if _, err := io.ReadFull(in, got); err != nil || string(got) != text {
			t.Errorf("%.10q came back as %.10q, %v", text, got, err)
		}
	}
	// A port where nothing listens, said in the words that clients know.
	req.Host = "8001-" + b.id + ".localhost"
	closed, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer closed.Body.Close()
	var said struct {
		Port int
		Code int
	}
	if err := json.NewDecoder(closed.Body).Decode(&said); err != nil || closed.StatusCode != http.StatusBadGateway || said.Port != 8001 {
		t.Errorf("a closed port: %s %+v %v", closed.Status, said, err)
	}
}
