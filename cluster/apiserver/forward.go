package apiserver

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

const (
	// maxMessage bounds one RPC message; files and archives go over plain HTTP without a bound.
	maxMessage = 16 << 20
	// peekTimeout is how long the first bytes of a body may take.
	peekTimeout = 15 * time.Second
)

// copyBuffers are the buffers of all streams that pass.
var copyBuffers = &bufferPool{pool: sync.Pool{New: func() any { return new([32 << 10]byte) }}}

type bufferPool struct{ pool sync.Pool }

func (p *bufferPool) Get() []byte  { return p.pool.Get().(*[32 << 10]byte)[:] }
func (p *bufferPool) Put(b []byte) { p.pool.Put((*[32 << 10]byte)(b)) }

// proxyTo makes the reverse proxy to one edge. Bytes pass unchanged and unbuffered: a response without a length
// is flushed piece by piece, 101 becomes a raw connection, and a client that goes takes its request along.
func (s *Server) proxyTo(e *Edge) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "local", "local"
			for _, h := range credentialHeaders {
				r.Out.Header.Del(h)
			}
			// To this machine's socket compression is only work: 50 us for an answer of a few bytes.
			for _, h := range []string{"Accept-Encoding", "Connect-Accept-Encoding", "Grpc-Accept-Encoding"} {
				r.Out.Header.Del(h)
			}
			r.Out.Header.Set(KeyHeader, keyOf(r.In.Context()).ID)
			r.Out.Header.Set(ProjectHeader, projectOf(r.In.Context()))
		},
		Transport:  e.transport,
		BufferPool: copyBuffers,
		ErrorLog:   log.New(discard{}, "", 0), // aborted copies are the client's to notice
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			s.writeError(w, r, e.failed(r.Context(), err))
		},
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// forwardRPC forwards a request about one sandbox by its field 1.
func (s *Server) forwardRPC(w http.ResponseWriter, r *http.Request) {
	id, err := s.peek(w, r)
	if err == nil && id == "" {
		err = fmt.Errorf("%s: %w: sandbox_id is missing", r.URL.Path, sandbox.ErrInvalid)
	}
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	s.forwardTo(w, r, id)
}

var errTooLarge = fmt.Errorf("request: %w: it is larger than %d bytes, which a command's arguments and environment are part of; larger data goes into a file (PUT .../files) or, piece by piece, to a command's stdin (SendInput)",
	sandbox.ErrInvalid, maxMessage)

// peek looks for sandbox_id under the bounds of time and size.
func (s *Server) peek(w http.ResponseWriter, r *http.Request) (string, error) {
	if r.ContentLength > maxMessage {
		return "", errTooLarge
	}
	if r.ContentLength < 0 {
		r.Body = http.MaxBytesReader(w, r.Body, maxMessage)
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(peekTimeout))
	defer rc.SetReadDeadline(time.Time{})
	return peekSandboxID(r)
}

// forwardPath forwards /v1/sandboxes/{id}/...
func (s *Server) forwardPath(w http.ResponseWriter, r *http.Request) {
	s.forwardTo(w, r, r.PathValue("id"))
}

func (s *Server) forwardTo(w http.ResponseWriter, r *http.Request, sandboxID string) {
	id, err := sandbox.ParseID(sandboxID)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	e, err := s.edges.Find(r.Context(), id.Edge())
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	s.metrics.forwarded.Inc()
	e.proxy.ServeHTTP(w, r)
}
