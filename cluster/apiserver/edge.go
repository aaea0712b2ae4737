package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/sandbox"
)

// KeyHeader tells an edge which key a forwarded request was made with. Edges trust it: only API servers reach
// them.
const KeyHeader = "Dsec-Key-Id"

// ProjectHeader tells an edge which project a forwarded request's key belongs to; as KeyHeader.
const ProjectHeader = "Dsec-Project"

// Edge is a connection to one edge.
type Edge struct {
	// Endpoint is unix:///path or http://host:port.
	Endpoint string
	base     string
	id       atomic.Pointer[sandbox.EdgeID] // nil until it has answered once
	down     atomic.Pointer[error]          // why it does not answer; nil = it does
	started  atomic.Int64                   // when its process did, in nanoseconds since 1970

	transport *direct
	proxy     *httputil.ReverseProxy
	dial      func(ctx context.Context) (net.Conn, error)

	Admin     dsecv1connect.EdgeServiceClient
	Node      dsecv1connect.NodeServiceClient
	Sandboxes dsecv1connect.SandboxServiceClient
	Calls     dsecv1connect.FnCallServiceClient
	Snapshots dsecv1connect.SnapshotServiceClient
}

// dialTimeout is long for a socket that exists and short for a person who waits.
const dialTimeout = 2 * time.Second

// uncompressed asks for plain answers.
var uncompressed = connect.WithAcceptCompression("gzip", nil, nil)

// newEdge makes the connections; none is opened yet.
func newEdge(endpoint string) (*Edge, error) {
	dial, base, err := dialer(endpoint)
	if err != nil {
		return nil, fmt.Errorf("edge endpoint: %w", err)
	}
	e := &Edge{Endpoint: endpoint, base: base, dial: dial, transport: &direct{dial: dial, next: newTransport(dial)}}
	hc := &http.Client{Transport: e.transport}
	e.Admin = dsecv1connect.NewEdgeServiceClient(hc, base, uncompressed)
	e.Node = dsecv1connect.NewNodeServiceClient(hc, base, uncompressed)
	e.Sandboxes = dsecv1connect.NewSandboxServiceClient(hc, base, uncompressed)
	e.Calls = dsecv1connect.NewFnCallServiceClient(hc, base, uncompressed)
	e.Snapshots = dsecv1connect.NewSnapshotServiceClient(hc, base, uncompressed)
	return e, nil
}

// dialer returns how an endpoint is reached and the base of its URLs.
func dialer(endpoint string) (dial func(ctx context.Context) (net.Conn, error), base string, err error) {
	d := &net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}
	if path, ok := strings.CutPrefix(endpoint, "unix://"); ok {
		return func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "unix", path) }, "http://local", nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return nil, "", fmt.Errorf("%q: %w: want unix:///path or http://host:port", endpoint, sandbox.ErrInvalid)
	}
	return func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", u.Host) }, "http://" + u.Host, nil
}

// newTransport keeps many connections open: one request each, no head-of-line blocking.
func newTransport(dial func(ctx context.Context) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxIdleConns:        2048,
		MaxIdleConnsPerHost: 2048,
		IdleConnTimeout:     60 * time.Second,
		DisableCompression:  true, // bytes pass as they are
		ReadBufferSize:      16 << 10,
		WriteBufferSize:     16 << 10,
	}
}

// ID of the edge, "" until it has answered once.
func (e *Edge) ID() sandbox.EdgeID {
	if id := e.id.Load(); id != nil {
		return *id
	}
	return ""
}

// Up tells whether the edge answered the last probe: nil, or why not.
func (e *Edge) Up() error {
	if err := e.down.Load(); err != nil {
		return *err
	}
	if e.id.Load() == nil {
		return fmt.Errorf("edge at %s: %w: it has not answered yet", e.Endpoint, sandbox.ErrUnavailable)
	}
	return nil
}

// probe asks the edge who it is.
func (e *Edge) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	resp, err := e.Node.GetNode(ctx, &dsecv1.GetNodeRequest{})
	if err == nil && len(resp.GetEdge()) != 4 {
		err = fmt.Errorf("it calls itself %q", resp.GetEdge())
	}
	if err != nil {
		err = fmt.Errorf("edge at %s: %w: %w", e.Endpoint, sandbox.ErrUnavailable, err)
		e.down.Store(&err)
		return err
	}
	if id := sandbox.EdgeID(resp.GetEdge()); id != e.ID() {
		e.id.Store(&id)
	}
	e.started.Store(resp.GetStartedAt().AsTime().UnixNano())
	e.down.Store(nil)
	return nil
}

// failed says what a failed call to the edge means. ctx is the caller's: whether it was the caller who gave up is
// asked of it alone, for client libraries call a reset connection "canceled" too.
func (e *Edge) failed(ctx context.Context, err error) error {
	var op *net.OpError
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large): // of a request that did not say its size
		return errTooLarge
	case ctx.Err() != nil:
		return fmt.Errorf("request: %w", ctx.Err())
	case errors.As(err, &op) && op.Op == "dial":
		return fmt.Errorf("edge %s: %w: it does not answer (nothing was done); it is being restarted, try again", e.name(), sandbox.ErrUnavailable)
	default:
		return fmt.Errorf("edge %s: %w: the connection broke (what was asked may have been done); look, and ask again (under the same operation id or idempotency key it is done once): %v",
			e.name(), sandbox.ErrUnavailable, err)
	}
}

func (e *Edge) name() string {
	if id := e.ID(); id != "" {
		return string(id)
	}
	return "at " + e.Endpoint
}

// answered turns an error of a typed call into one that names the edge when it is the connection's.
func (e *Edge) answered(ctx context.Context, err error) error {
	if connect.IsWireError(err) && (connect.CodeOf(err) != connect.CodeCanceled || ctx.Err() != nil) {
		return err
	}
	return e.failed(ctx, err)
}
