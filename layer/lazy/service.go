package lazy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// local is the answer to a request for a layer.
type local struct {
	MetaPath string         `json:"metaPath"`
	Manifest layer.Manifest `json:"manifest"` // without the digests of chunks
}

type failure struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// kinds are the sentinels that cross the socket.
var kinds = map[string]error{
	"not found": sandbox.ErrNotFound, "unavailable": sandbox.ErrUnavailable, "invalid": sandbox.ErrInvalid, "conflict": sandbox.ErrConflict,
}

// Handler is the server's API, for the machine's own processes:
//
//	POST /v1/lazy/layers/{digest}        attach: metadata on the node's disk
//	GET  /v1/lazy/layers                 digests of what is there
//	GET  /v1/lazy/layers/{digest}/trace  what was read of it (Trace)
//	GET  /v1/lazy/stats                  counters (Stats)
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/lazy/layers/{digest}", func(w http.ResponseWriter, r *http.Request) {
		l, err := s.Attach(r.Context(), layer.Digest(r.PathValue("digest")))
		if err != nil {
			refuse(w, err)
			return
		}
		m := l.Manifest
		m.Meta.Chunks, m.Data.Chunks = nil, nil
		reply(w, local{MetaPath: l.MetaPath, Manifest: m})
	})
	mux.HandleFunc("GET /v1/lazy/layers", func(w http.ResponseWriter, r *http.Request) { reply(w, s.Layers()) })
	mux.HandleFunc("GET /v1/lazy/layers/{digest}/trace", func(w http.ResponseWriter, r *http.Request) {
		t, err := s.Trace(layer.Digest(r.PathValue("digest")))
		if err != nil {
			refuse(w, err)
			return
		}
		reply(w, t)
	})
	mux.HandleFunc("GET /v1/lazy/stats", func(w http.ResponseWriter, r *http.Request) { reply(w, s.Stats()) })
	return mux
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, err error) {
	f := failure{Kind: "internal", Message: err.Error()}
	status := http.StatusInternalServerError
	for kind, e := range kinds {
		if errors.Is(err, e) {
			f.Kind, status = kind, http.StatusServiceUnavailable
			break
		}
	}
	if errors.Is(err, sandbox.ErrNotFound) {
		f.Kind, status = "not found", http.StatusNotFound
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(f)
}

// Node gives a backend the layers that a Server on this machine serves.
type Node struct {
	http *http.Client
	hold *hold.Client

	mu     sync.Mutex
	mounts []*os.File // of the FUSE file system: the newest last, and one before it, which may be in use
}

var _ layer.Node = (*Node)(nil)

// NewNode returns a Node that asks the server at a Unix socket, and takes the mount from the holder.
func NewNode(socket string, h *hold.Client) *Node {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &Node{hold: h, http: &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute}}}
}

// serverWait is how long a server may take to come back, and the pause between two tries.
const serverWait, serverRetry = 10 * time.Second, 50 * time.Millisecond

// Local attaches a layer. Its data is read on demand: what is on this machine is the metadata.
func (n *Node) Local(ctx context.Context, d layer.Digest) (*layer.Local, error) {
	l, err := n.attach(ctx, d)
	for end := time.Now().Add(serverWait); isDown(err) && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(serverRetry)
		l, err = n.attach(ctx, d)
	}
	if err != nil {
		return nil, err
	}
	out := &layer.Local{Digest: d, Manifest: l.Manifest, MetaPath: l.MetaPath}
	if l.Manifest.Data.Size > 0 {
		m, err := n.mount()
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", d, err)
		}
		out.Readahead = Readahead
		out.DataPath = fmt.Sprintf("/proc/self/fd/%d/%s", m.Fd(), d.Hex())
	}
	return out, nil
}

// Readahead is how far ahead of who goes straight on the kernel reads a layer, bytes. As much is read around a page of
// a mapped file, where more would bring what nobody wants.
const Readahead = 512 << 10

// isDown tells that there was no server to ask.
func isDown(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

func (n *Node) attach(ctx context.Context, d layer.Digest) (*local, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://blobd/v1/lazy/layers/"+string(d), nil)
	if err != nil {
		return nil, err
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w: %w", d, sandbox.ErrUnavailable, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w: %w", d, sandbox.ErrUnavailable, err)
	}
	if resp.StatusCode != http.StatusOK {
		var f failure
		if err := json.Unmarshal(b, &f); err != nil || kinds[f.Kind] == nil {
			return nil, fmt.Errorf("layer %s: %w: %s %.300s", d, sandbox.ErrUnavailable, resp.Status, b)
		}
		return nil, &remoteError{kind: kinds[f.Kind], text: f.Message}
	}
	l := &local{}
	if err := json.Unmarshal(b, l); err != nil || !strings.HasPrefix(l.MetaPath, "/") {
		return nil, fmt.Errorf("layer %s: %w: the server answered %.300q", d, sandbox.ErrUnavailable, b)
	}
	return l, nil
}

// remoteError is an error of the server's with its kind.
type remoteError struct {
	kind error
	text string
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

// mount returns the mount that the holder has now: a new holder has a new one, or none for a moment.
func (n *Node) mount() (*os.File, error) {
	f, err := n.hold.Get(mountName)
	for end := time.Now().Add(serverWait); errors.Is(err, sandbox.ErrNotFound) && time.Now().Before(end); {
		time.Sleep(serverRetry)
		f, err = n.hold.Get(mountName)
	}
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if k := len(n.mounts); k > 0 {
		_, here, err1 := linux.Device(n.mounts[k-1])
		_, there, err2 := linux.Device(f)
		if err1 == nil && err2 == nil && here == there {
			f.Close()
			return n.mounts[k-1], nil
		}
	}
	n.mounts = append(n.mounts, f)
	if len(n.mounts) > 2 {
		n.mounts[0].Close()
		n.mounts = n.mounts[1:]
	}
	return f, nil
}

// Close lets go of the mount; what was mounted from it stays.
func (n *Node) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, f := range n.mounts {
		f.Close()
	}
	n.mounts = nil
	n.http.CloseIdleConnections()
}
