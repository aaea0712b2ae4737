package sandboxtest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/internal/testkit/patience"
	"github.com/opendsec/dsec/sandbox"
)

// Factory is what the suite needs to know of a driver.
type Factory struct {
	// Backend makes the driver; the suite closes it. state is an empty directory of its own.
	Backend func(t testing.TB, edge sandbox.EdgeID, state string) sandbox.Backend
	// Layers of the environment, bottom to top; with what its image says.
	Layers   []*dsecv1.ResolvedLayer
	ImageEnv []string
	// KillInit ends a sandbox's dsec-init the hard way. nil = that is not tested.
	KillInit func(t testing.TB, b sandbox.Backend, id sandbox.ID)
	// Limits of the suite's sandboxes; nil = the node's defaults.
	Limits *dsecv1.Limits
	// MinDisk is the least size of a sandbox's disk, bytes; 0 = any.
	MinDisk int64
	// Internet is there once Backend has been called, for drivers whose instances can have a network.
	Internet func() *Internet
	// Config is changed where a driver needs it.
	Config func(*edge.Config)
}

// Timeout bounds every wait of the suite. Packages whose machines are emulated set a longer one in their init.
var Timeout = time.Duration(patience.Factor()) * 3 * time.Minute

// Node is a running edge and its clients.
type Node struct {
	T       testing.TB
	Edge    *edge.Edge
	Backend sandbox.Backend
	Factory Factory
	State   string
	ID      sandbox.EdgeID // drawn for each node, so that several tests can run beside each other

	Sandboxes dsecv1connect.SandboxServiceClient
	Creator   dsecv1connect.EdgeServiceClient
	Commands  dsecv1connect.CommandServiceClient
	Files     dsecv1connect.FileServiceClient
	Nodes     dsecv1connect.NodeServiceClient
	Snapshots dsecv1connect.SnapshotServiceClient
	HTTP      *http.Client
	URL       string
	Socket    string

	configure func(*edge.Config)
	server    *http.Server
	serving   sync.WaitGroup
	log       *slog.Logger
}

// Start makes a driver and an edge over it, and stops everything at the end of the test. configure may change
// the edge's configuration; it is nil or called before each start.
func Start(t testing.TB, f Factory, configure func(*edge.Config)) *Node {
	t.Helper()
	dir, err := os.MkdirTemp("", "dsec-test-") // short: it holds a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	state := filepath.Join(dir, "driver")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	id := sandbox.NewEdgeID()
	n := &Node{T: t, Factory: f, State: dir, ID: id, Backend: f.Backend(t, id, state), configure: configure, log: testLog(t)}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Timeout)
		defer cancel()
		if n.Edge != nil {
			if err := n.Edge.StopAll(ctx); err != nil {
				t.Errorf("stop all: %v", err)
			}
			n.Stop()
		}
		if err := n.Backend.Close(ctx); err != nil {
			t.Errorf("close the driver: %v", err)
		}
	})
	n.Restart()
	return n
}

// testLog shows the edge's log with -v.
func testLog(t testing.TB) *slog.Logger {
	var w io.Writer = io.Discard
	if testing.Verbose() {
		w = os.Stderr
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo})).With("test", t.Name())
}

// Stop ends the edge; sandboxes go on.
func (n *Node) Stop() {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	if err := n.Edge.Close(ctx); err != nil {
		n.T.Errorf("close the edge: %v", err)
	}
	n.Edge = nil
	if n.server == nil {
		return // it never came to serve
	}
	_ = n.server.Close()
	n.serving.Wait()
	n.server = nil
	n.HTTP.CloseIdleConnections()
}

// Restart stops the edge if it runs and starts one over the same state and driver.
func (n *Node) Restart() {
	n.T.Helper()
	if n.Edge != nil {
		n.Stop()
	}
	cfg := edge.Config{ID: n.ID, StateDir: filepath.Join(n.State, "edge"), Version: "test", DefaultBackend: n.Backend.Name(), MinFreeMemory: 1 << 20,
		StartTimeout: time.Duration(patience.Factor()) * 30 * time.Second, SharedAnswerLimit: time.Duration(patience.Factor()) * 15 * time.Second}
	if n.Factory.Config != nil {
		n.Factory.Config(&cfg)
	}
	if n.configure != nil {
		n.configure(&cfg)
	}
	e, err := edge.New(cfg, map[sandbox.BackendName]sandbox.Backend{n.Backend.Name(): n.Backend}, n.log)
	if err != nil {
		n.T.Fatal(err)
	}
	n.Edge = e
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	if err := e.Recover(ctx); err != nil {
		n.T.Fatal(err)
	}
	n.serve()
}

func (n *Node) serve() {
	n.Socket = filepath.Join(n.State, "edge.sock")
	_ = os.Remove(n.Socket)
	l, err := net.Listen("unix", n.Socket)
	if err != nil {
		n.T.Fatal(err)
	}
	n.server = &http.Server{Handler: n.Edge.Handler(), ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelDebug)}
	n.serving.Go(func() { _ = n.server.Serve(l) })
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", n.Socket)
	}
	n.HTTP = &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 64}}
	n.URL = "http://edge"
	n.Sandboxes = dsecv1connect.NewSandboxServiceClient(n.HTTP, n.URL)
	n.Creator = dsecv1connect.NewEdgeServiceClient(n.HTTP, n.URL)
	n.Commands = dsecv1connect.NewCommandServiceClient(n.HTTP, n.URL)
	n.Files = dsecv1connect.NewFileServiceClient(n.HTTP, n.URL)
	n.Nodes = dsecv1connect.NewNodeServiceClient(n.HTTP, n.URL)
	n.Snapshots = dsecv1connect.NewSnapshotServiceClient(n.HTTP, n.URL)
}

// Context ends with the suite's timeout.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	t.Cleanup(cancel)
	return ctx
}

// Request is a creation in the factory's environment.
func (n *Node) Request(spec *dsecv1.SandboxSpec) *dsecv1.CreateResolvedRequest {
	if spec == nil {
		spec = &dsecv1.SandboxSpec{}
	}
	if spec.Limits == nil {
		spec.Limits = n.Factory.Limits
	}
	return &dsecv1.CreateResolvedRequest{
		Create: &dsecv1.CreateSandboxRequest{Spec: spec}, Layers: n.Factory.Layers, ImageEnv: n.Factory.ImageEnv, KeyId: "test",
	}
}

// Create makes one sandbox; it fails the test if that fails. The sandbox is stopped at the test's end.
func (n *Node) Create(t testing.TB, spec *dsecv1.SandboxSpec) *Box {
	t.Helper()
	ctx := Context(t)
	resp, err := n.Creator.CreateResolved(ctx, n.Request(spec))
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	r := resp.Response.Results[0]
	if r.Error != nil {
		t.Fatalf("create: %v", r.Error)
	}
	return n.Box(t, r.Sandbox)
}

// Box is a sandbox that was made; it is stopped at the test's end.
func (n *Node) Box(t testing.TB, made *dsecv1.Sandbox) *Box {
	b := &Box{T: t, N: n, Ctx: Context(t), ID: made.Id, Sandbox: made}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Timeout)
		defer cancel()
		if n.Edge == nil {
			return
		}
		if _, err := n.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: b.ID}); err != nil && connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("stop: %v", err)
		}
	})
	return b
}

// WantCode fails the test unless err has the code and its message holds every one of the texts.
func WantCode(t testing.TB, err error, code connect.Code, texts ...string) {
	t.Helper()
	if connect.CodeOf(err) != code || err == nil {
		t.Errorf("error %v, want %v", err, code)
		return
	}
	for _, text := range texts {
		if !contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
}

// Eventually waits until cond is true, as long as the suite's timeout. It asks again and again: use it only
// for what no event announces.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(Timeout)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, Timeout)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Quote is text as one word of a shell.
func Quote(s string) string { return fmt.Sprintf("'%s'", s) }
