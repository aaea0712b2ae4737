package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/backend/fake"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/sandbox"
)

// service is a real edge over the fake driver, behind a proxy that can cut connections. An edge serves all of the
// API but creation, which gets its layers from the API server: here there are none.
type service struct {
	dsecv1connect.EdgeServiceClient
	url string
	cut *cutter
}

func newService(t *testing.T) *service {
	id := sandbox.NewEdgeID()
	back := fake.New(fake.Options{Edge: id})
	e, err := edge.New(edge.Config{ID: id, StateDir: t.TempDir()}, map[sandbox.BackendName]sandbox.Backend{sandbox.BackendFake: back}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: e.Handler()}
	go srv.Serve(ln)
	s := &service{EdgeServiceClient: dsecv1connect.NewEdgeServiceClient(http.DefaultClient, "http://"+ln.Addr().String())}
	s.cut = newCutter(t, ln.Addr().String())
	s.url = "http://" + s.cut.ln.Addr().String()
	t.Cleanup(func() {
		s.cut.close()
		srv.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := errors.Join(e.StopAll(ctx), e.Close(ctx), back.Close(ctx)); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *service) create(t *testing.T) string {
	r, err := s.CreateResolved(t.Context(), &dsecv1.CreateResolvedRequest{Create: &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{Backend: dsecv1.Backend_BACKEND_FAKE}}})
	if err != nil || r.GetResponse().GetResults()[0].GetSandbox() == nil {
		t.Fatal(r, err)
	}
	return r.GetResponse().GetResults()[0].GetSandbox().GetId()
}

func (s *service) client(t *testing.T) *client.Client {
	c, err := client.New(client.Options{Config: client.Config{URL: s.url, Key: "unused"}, Patience: 20 * time.Second, FirstContact: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// cutter is a TCP proxy that cuts every connection once it has carried so many bytes back.
type cutter struct {
	ln     net.Listener
	target string
	wg     sync.WaitGroup

	mu    sync.Mutex
	after func() int64 // bytes until the cut; nil = never
	conns map[net.Conn]bool
	cuts  int
}

func newCutter(t *testing.T, target string) *cutter {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{ln: ln, target: target, conns: map[net.Conn]bool{}}
	c.wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			c.wg.Go(func() { c.carry(in) })
		}
	})
	return c
}

func (c *cutter) carry(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", c.target)
	if err != nil {
		return
	}
	defer out.Close()
	c.mu.Lock()
	c.conns[in], c.conns[out] = true, true
	limit := int64(1) << 62
	if c.after != nil {
		limit = c.after()
	}
	c.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(out, in)
		out.(*net.TCPConn).CloseWrite()
	})
	if n, _ := io.CopyN(in, out, limit); n == limit {
		c.mu.Lock()
		c.cuts++
		c.mu.Unlock()
		in.(*net.TCPConn).SetLinger(0) // a reset, as from a process that was killed
	}
	in.Close()
	out.Close()
	wg.Wait()
	c.mu.Lock()
	delete(c.conns, in)
	delete(c.conns, out)
	c.mu.Unlock()
}

func (c *cutter) every(f func() int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after = f
}

func (c *cutter) close() {
	c.ln.Close()
	c.mu.Lock()
	for conn := range c.conns {
		conn.Close()
	}
	c.mu.Unlock()
	c.wg.Wait()
}

// TestRunThroughCuts follows a counter while the connection breaks again and again: every line arrives exactly
// once, in order.
func TestRunThroughCuts(t *testing.T) {
	s := newService(t)
	id := s.create(t)
	c := s.client(t)
	const lines = 200_000
	// Often more than one piece of output: a cut within every piece would let nothing through.
	s.cut.every(func() int64 { return 500 + rand.Int64N(200_000) })
	var out bytes.Buffer
	started := 0
	cmd, err := c.Run(t.Context(), client.Run{SandboxID: id, Spec: &dsecv1.CommandSpec{Shell: fmt.Sprintf("count %d", lines)},
		Started: func(*dsecv1.Command) { started++ },
		Output:  func(o *dsecv1.Output) error { out.Write(o.GetData()); return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if cmd.GetResult().GetExitCode() != 0 || started != 1 || cmd.GetOrder() != 1 {
		t.Errorf("ended %v, started %d times", cmd, started)
	}
	got := strings.Fields(out.String())
	if len(got) != lines {
		t.Fatalf("%d lines", len(got))
	}
	for i := range got {
		if got[i] != fmt.Sprint(i+1) {
			t.Fatalf("line %d is %q", i+1, got[i])
		}
	}
	s.cut.mu.Lock()
	defer s.cut.mu.Unlock()
	t.Logf("%d cuts", s.cut.cuts)
	if s.cut.cuts < 3 {
		t.Error("the connection was hardly cut: the test proves nothing")
	}
}

// TestSafeCallsAreRepeated: reads and calls with an operation id succeed through cuts, and run once.
func TestSafeCallsAreRepeated(t *testing.T) {
	s := newService(t)
	id := s.create(t)
	c := s.client(t)
	var n atomic.Int32
	s.cut.every(func() int64 { // the first answers are cut off in their middle
		if n.Add(1) <= 3 {
			return 60
		}
		return 1 << 40
	})
	if _, err := c.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: id}); err != nil {
		t.Fatal(err)
	}
	n.Store(0)
	c.Close()
	r, err := c.Commands.Exec(t.Context(), &dsecv1.ExecRequest{SandboxId: id, OperationId: "op", Command: &dsecv1.CommandSpec{Shell: "echo x >>/log; cat /log"}})
	if err != nil || string(r.GetStdout()) != "x\n" {
		t.Fatalf("%q, %v", r.GetStdout(), err)
	}
	n.Store(0)
	c.Close()
	if _, err := c.Commands.Exec(t.Context(), &dsecv1.ExecRequest{SandboxId: id, Command: &dsecv1.CommandSpec{Shell: "true"}}); err == nil {
		t.Fatal("a command without an operation id was repeated")
	}
}

func TestInput(t *testing.T) {
	s := newService(t)
	id := s.create(t)
	c := s.client(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	var out bytes.Buffer
	_, err := c.Run(t.Context(), client.Run{SandboxID: id, Spec: &dsecv1.CommandSpec{Argv: []string{"cat"}}, Stdin: bytes.NewReader(want),
		Output: func(o *dsecv1.Output) error { out.Write(o.GetData()); return nil }})
	if err != nil || !bytes.Equal(out.Bytes(), want) {
		t.Fatalf("%d of %d bytes, %v", out.Len(), len(want), err)
	}
}

// TestInputThroughCuts: the connection breaks again and again while input is sent, before and after the answers; each byte
// arrives once, and the end.
func TestInputThroughCuts(t *testing.T) {
	s := newService(t)
	id := s.create(t)
	c := s.client(t)
	var want bytes.Buffer
	for i := range 60_000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	left := 12 // cuts, so that the stream of the output is not cut for ever
	s.cut.every(func() int64 {
		if left--; left < 0 {
			return 1 << 40
		}
		return rng.Int64N(900)
	})
	var out bytes.Buffer
	_, err := c.Run(t.Context(), client.Run{SandboxID: id, Spec: &dsecv1.CommandSpec{Argv: []string{"cat"}},
		Stdin:  pieces{bytes.NewReader(want.Bytes())},
		Output: func(o *dsecv1.Output) error { out.Write(o.GetData()); return nil }})
	if err != nil || !bytes.Equal(out.Bytes(), want.Bytes()) {
		t.Fatalf("%d of %d bytes, %v", out.Len(), want.Len(), err)
	}
	s.cut.mu.Lock()
	defer s.cut.mu.Unlock()
	if s.cut.cuts < 5 {
		t.Errorf("only %d cuts", s.cut.cuts)
	}
}

// pieces hands input over in small ones.
type pieces struct{ r io.Reader }

func (p pieces) Read(b []byte) (int, error) { return p.r.Read(b[:min(len(b), 10_000)]) }

func TestStartAndAttach(t *testing.T) {
	s := newService(t)
	id := s.create(t)
	c := s.client(t)
	cmd, err := c.Start(t.Context(), id, &dsecv1.CommandSpec{Shell: "echo 0123456789; exit 4"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	done, err := c.Attach(t.Context(), id, cmd.GetId(), 4, func(o *dsecv1.Output) error { out.Write(o.GetData()); return nil })
	if err != nil || done.GetResult().GetExitCode() != 4 || out.String() != "456789\n" {
		t.Fatalf("%q, %v, %v", out.String(), done, err)
	}
	mine := errors.New("enough")
	if _, err := c.Attach(t.Context(), id, cmd.GetId(), 0, func(*dsecv1.Output) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("an error of the caller's own: %v", err)
	}
	if _, err := c.Attach(t.Context(), id, "nosuch", 0, nil); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("unknown command: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = c.Run(ctx, client.Run{SandboxID: id, Spec: &dsecv1.CommandSpec{Shell: "sleep 60"}, Started: func(*dsecv1.Command) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestFiles(t *testing.T) {
	s := newService(t)
	id := s.create(t)
	c := s.client(t)
	if err := c.WriteFile(t.Context(), id, "/d/f", client.WriteOptions{Mode: 0o600, Parents: true}, strings.NewReader("hello")); err != nil {
		t.Fatal(err)
	}
	r, err := c.ReadFile(t.Context(), id, "/d/f", "", 1, 3)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	r.Close()
	if string(b) != "ell" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := c.ReadFile(t.Context(), id, "/nothing", "", 0, 0); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("missing file: %v", err)
	}
}

func TestDial(t *testing.T) {
	s := newService(t)
	id := s.create(t)
	c := s.client(t)
	nc, err := c.Dial(t.Context(), id, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(nc, "echo"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(nc, b); err != nil || string(b) != "echo" {
		t.Fatalf("%q, %v", b, err)
	}
	if _, err := c.Dial(t.Context(), id, 9); err == nil || connect.CodeOf(err) == connect.CodeUnknown {
		t.Errorf("a port where nothing listens: %v", err)
	}
}

func TestConfig(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("DSEC_URL", "")
	t.Setenv("DSEC_API_KEY", "")
	path, err := client.UserConfigPath()
	if err != nil || path != filepath.Join(home, ".config/dsec/client.json") {
		t.Fatal(path, err)
	}
	want := client.Config{URL: "http://127.0.0.1:1", Key: "k"}
	if err := client.WriteConfig(path, want); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatal(st, err)
	}
	for _, c := range []struct {
		url, key string
		want     client.Config
	}{
		{"", "", want},
		{"", "other", client.Config{URL: want.URL, Key: "other"}},
		{"http://elsewhere", "", client.Config{URL: "http://elsewhere"}}, // the key is not for that one
		{want.URL, "", want},
		{"http://elsewhere", "e", client.Config{URL: "http://elsewhere", Key: "e"}},
		{"http://elsewhere\n", " e\r\n", client.Config{URL: "http://elsewhere", Key: "e"}}, // from files
		{want.URL + "/", "", want},
	} {
		t.Setenv("DSEC_URL", c.url)
		t.Setenv("DSEC_API_KEY", c.key)
		if got, err := client.LoadConfig(); err != nil || got != c.want {
			t.Errorf("%q %q: %+v, %v", c.url, c.key, got, err)
		}
	}
	if _, err := client.New(client.Options{Config: client.Config{URL: "localhost:7777"}}); err == nil || !strings.Contains(err.Error(), "DSEC_URL") {
		t.Errorf("URL without a scheme: %v", err)
	}
	for _, key := range []string{"dsec_a b", "dsec_a\nb", "dsec_é", "dsec_\x7f"} {
		if _, err := client.New(client.Options{Config: client.Config{URL: want.URL, Key: key}}); err == nil || !strings.Contains(err.Error(), "DSEC_API_KEY") || strings.Contains(err.Error(), "dsec_") {
			t.Errorf("key %q: %v", key, err)
		}
	}
}

func TestNoService(t *testing.T) {
	c, err := client.New(client.Options{Config: client.Config{URL: "http://127.0.0.1:1"}, FirstContact: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: "x"})
	_, err2 := c.ReadFile(t.Context(), "x", "/", "", 0, 0)
	_, err3 := c.Dial(t.Context(), "x", 1)
	_, err4 := c.Run(t.Context(), client.Run{SandboxID: "x", Spec: &dsecv1.CommandSpec{}})
	for _, err := range []error{err, err2, err3, err4} {
		var none *client.NoServiceError
		if !errors.As(err, &none) || !strings.Contains(err.Error(), "dsec up") {
			t.Errorf("got %v", err)
		}
	}
}

func TestAnotherServer(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	c, err := client.New(client.Options{Config: client.Config{URL: s.URL}, FirstContact: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: "x"})
	if err == nil || !strings.Contains(err.Error(), "is no DSec service") {
		t.Errorf("got %v", err)
	}
}
