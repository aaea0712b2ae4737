package apiserver_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/cluster/apiserver"
	"github.com/opendsec/dsec/cluster/engine"
	"github.com/opendsec/dsec/cluster/iam"
	"github.com/opendsec/dsec/sandbox"
	"google.golang.org/protobuf/types/known/timestamppb"
)

var quiet = slog.New(slog.DiscardHandler)

// edgeEnd is the far side of a test: handlers of an edge on a Unix socket, which record what reaches them.
type edgeEnd struct {
	dsecv1connect.UnimplementedSandboxServiceHandler
	dsecv1connect.UnimplementedCommandServiceHandler
	dsecv1connect.UnimplementedEdgeServiceHandler
	dsecv1connect.UnimplementedNodeServiceHandler
	id     sandbox.EdgeID
	socket string
	srv    *http.Server

	mu      sync.Mutex
	header  http.Header
	boxes   []*dsecv1.Sandbox // newest first
	created *dsecv1.CreateResolvedRequest

	release chan struct{} // lets a held stream go on
	gone    chan struct{} // receives when a held stream's client went away
	port    func(net.Conn)
}

func newEdgeEnd(t testing.TB, id sandbox.EdgeID) *edgeEnd {
	e := &edgeEnd{id: id, socket: filepath.Join(t.TempDir(), "e.sock"), release: make(chan struct{}), gone: make(chan struct{}, 1)}
	e.start(t)
	t.Cleanup(func() { e.srv.Close() })
	return e
}

func (e *edgeEnd) start(t testing.TB) {
	ln, err := net.Listen("unix", e.socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(dsecv1connect.NewSandboxServiceHandler(e))
	mux.Handle(dsecv1connect.NewCommandServiceHandler(e))
	mux.Handle(dsecv1connect.NewEdgeServiceHandler(e))
	mux.Handle(dsecv1connect.NewNodeServiceHandler(e))
	mux.HandleFunc("GET /v1/sandboxes/{id}/files", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("length"))
		_, _ = io.CopyN(w, zeros{}, int64(n))
	})
	mux.HandleFunc("PUT /v1/sandboxes/{id}/files", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%d %v", n, err)
	})
	mux.HandleFunc("GET /v1/sandboxes/{id}/tcp/{port}", e.tcp)
	e.srv = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.header = r.Header.Clone()
		e.mu.Unlock()
		mux.ServeHTTP(w, r)
	})}
	go e.srv.Serve(ln)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func (e *edgeEnd) tcp(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "dsec-tcp" || r.PathValue("port") != "8000" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"code":"unavailable","message":"nothing listens there"}`)
		return
	}
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: dsec-tcp\r\n\r\n")
	e.port(&bufferedConn{c, rw.Reader})
}

type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *bufferedConn) Read(b []byte) (int, error) { return c.r.Read(b) }

func (e *edgeEnd) GetNode(context.Context, *dsecv1.GetNodeRequest) (*dsecv1.GetNodeResponse, error) {
	return &dsecv1.GetNodeResponse{Edge: string(e.id)}, nil
}

func (e *edgeEnd) GetSandbox(_ context.Context, r *dsecv1.GetSandboxRequest) (*dsecv1.GetSandboxResponse, error) {
	for _, b := range e.boxes {
		if b.Id == r.GetSandboxId() {
			return &dsecv1.GetSandboxResponse{Sandbox: b}, nil
		}
	}
	err := connect.NewError(connect.CodeNotFound, fmt.Errorf("sandbox %s ended long ago", r.GetSandboxId()))
	if d, derr := connect.NewErrorDetail(&dsecv1.Failure{Kind: "stopped"}); derr == nil {
		err.AddDetail(d)
	}
	return nil, err
}

func (e *edgeEnd) ListSandboxes(_ context.Context, r *dsecv1.ListSandboxesRequest) (*dsecv1.ListSandboxesResponse, error) {
	from, _ := strconv.Atoi(r.GetPageToken())
	to := min(from+int(r.GetPageSize()), len(e.boxes))
	out := &dsecv1.ListSandboxesResponse{Sandboxes: e.boxes[from:to]}
	if to < len(e.boxes) {
		out.NextPageToken = strconv.Itoa(to)
	}
	return out, nil
}

func (e *edgeEnd) StopSandboxes(context.Context, *dsecv1.StopSandboxesRequest) (*dsecv1.StopSandboxesResponse, error) {
	out := &dsecv1.StopSandboxesResponse{}
	for _, b := range e.boxes {
		out.StoppedIds = append(out.StoppedIds, b.Id)
	}
	return out, nil
}

func (e *edgeEnd) StreamEvents(ctx context.Context, r *dsecv1.StreamEventsRequest, s *connect.ServerStream[dsecv1.StreamEventsResponse]) error {
	for i, b := range e.boxes {
		if r.GetSandboxId() == "" || r.GetSandboxId() == b.Id {
			if err := s.Send(&dsecv1.StreamEventsResponse{Event: &dsecv1.Event{SandboxId: b.Id, Sequence: int64(i + 1)}}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *edgeEnd) CreateResolved(_ context.Context, r *dsecv1.CreateResolvedRequest) (*dsecv1.CreateResolvedResponse, error) {
	e.created = r
	if r.GetCreate().GetIdempotencyKey() == "die" {
		e.srv.Close() // cuts every connection, as the death of an edge does
	}
	b := &dsecv1.Sandbox{Id: string(sandbox.NewID(e.id))}
	return &dsecv1.CreateResolvedResponse{Response: &dsecv1.CreateSandboxResponse{Results: []*dsecv1.CreateResult{{Sandbox: b}}}}, nil
}

func (e *edgeEnd) Exec(_ context.Context, r *dsecv1.ExecRequest) (*dsecv1.ExecResponse, error) {
	return &dsecv1.ExecResponse{Stdout: []byte(r.GetCommand().GetShell())}, nil
}

// StartCommand says "one", and "two" once the test releases it.
func (e *edgeEnd) StartCommand(ctx context.Context, r *dsecv1.StartCommandRequest, s *connect.ServerStream[dsecv1.StartCommandResponse]) error {
	say := func(text string) error {
		return s.Send(&dsecv1.StartCommandResponse{Event: &dsecv1.CommandEvent{Event: &dsecv1.CommandEvent_Output{Output: &dsecv1.Output{Data: []byte(text)}}}})
	}
	if err := say("one"); err != nil {
		return err
	}
	select {
	case <-e.release:
		return say("two")
	case <-ctx.Done():
		e.gone <- struct{}{}
		return ctx.Err()
	}
}

func (e *edgeEnd) lastHeader() http.Header {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.header
}

// add puts n sandboxes on the edge.
func (e *edgeEnd) add(n int) (ids []string) {
	for i := range n {
		id := string(sandbox.NewID(e.id))
		e.boxes = append(e.boxes, &dsecv1.Sandbox{Id: id, CreatedAt: timestamppb.New(time.Unix(int64(1000-i), 0))})
		ids = append(ids, id)
	}
	return ids
}

// catalogue of one base.
type catalogue struct{ apiserver.Catalogue }

func (catalogue) Resolve(_ context.Context, env *dsecv1.Environment) (*dsecv1.ResolvedEnvironment, error) {
	if env.GetBase() != "debian" {
		return nil, fmt.Errorf("base %q: %w", env.GetBase(), sandbox.ErrNotFound)
	}
	return &dsecv1.ResolvedEnvironment{
		Layers: []*dsecv1.ResolvedLayer{{Digest: "b3:1", Kind: "base", Name: "debian", Version: "v1"}},
		Config: &dsecv1.ImageConfig{Env: []string{"A=1"}, User: "u", Workdir: "/w"},
		Limits: &dsecv1.Limits{Pids: 77},
	}, nil
}

// rig is a real API server with a real engine in front of edge ends.
type rig struct {
	edges []*edgeEnd
	api   *httptest.Server
	ports *httptest.Server
	keys  *iam.Store
	keyID string
	key   string
}

func newRig(t testing.TB, edgeIDs ...sandbox.EdgeID) *rig {
	ctx, cancel := context.WithCancel(context.Background())
	dir := t.TempDir()
	e, err := engine.Start(ctx, engine.Options{Dir: filepath.Join(dir, "d"), Socket: filepath.Join(dir, "s"), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	etcd, err := engine.Dial("unix://" + filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { etcd.Close() })
	r := &rig{keys: iam.New(etcd, iam.Options{Log: quiet})}
	var endpoints []string
	for _, id := range edgeIDs {
		end := newEdgeEnd(t, id)
		r.edges = append(r.edges, end)
		endpoints = append(endpoints, "unix://"+end.socket)
	}
	s, err := apiserver.New(apiserver.Options{Edges: endpoints, Keys: r.keys, Catalogue: catalogue{}, PortsURL: "http://127.0.0.1:7778", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	k, secret, err := r.keys.Create(ctx, "test", "")
	if err != nil {
		t.Fatal(err)
	}
	r.keyID, r.key = k.ID, secret
	serve := func(h http.Handler) *httptest.Server {
		srv := httptest.NewUnstartedServer(h)
		srv.Config.Protocols = new(http.Protocols)
		srv.Config.Protocols.SetHTTP1(true)
		srv.Config.Protocols.SetUnencryptedHTTP2(true)
		srv.Start()
		t.Cleanup(srv.Close)
		return srv
	}
	r.api, r.ports = serve(s.Handler()), serve(s.Ports())
	return r
}

// bearer adds the rig's key.
func (r *rig) bearer() *http.Client {
	return &http.Client{Transport: roundTrip(func(q *http.Request) (*http.Response, error) {
		q = q.Clone(q.Context())
		q.Header.Set("Authorization", "Bearer "+r.key)
		return http.DefaultTransport.RoundTrip(q)
	})}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func ctxT(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func wantCode(t *testing.T, err error, code connect.Code) {
	t.Helper()
	if connect.CodeOf(err) != code || err == nil {
		t.Fatalf("got %v, want %s", err, code)
	}
}

func sortedIDs(boxes []*dsecv1.Sandbox) []string {
	var ids []string
	for _, b := range boxes {
		ids = append(ids, b.GetId())
	}
	slices.Sort(ids)
	return ids
}
