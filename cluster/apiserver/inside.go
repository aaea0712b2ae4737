package apiserver

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"

	"github.com/opendsec/dsec/cluster/iam"
	"github.com/opendsec/dsec/sandbox"
)

// WithKey says which key a request through Inside is made with: its caller has checked it.
func WithKey(ctx context.Context, k iam.Key) context.Context {
	return context.WithValue(ctx, keyInContext{}, k)
}

// Inside serves the API to other doors of this process (cluster/e2b) without a connection. It authenticates nobody: who
// uses it has done that, by rules of its own, and says so WithKey. Bodies stream in both directions; the answer
// ends with the request's context.
func (s *Server) Inside() http.RoundTripper { return &inside{h: s.bounded(s.api), log: s.o.Log} }

// DialPort connects to a port of a sandbox. Errors: ErrInvalid, ErrNotFound, *tcptunnel.Refused.
func (s *Server) DialPort(ctx context.Context, id sandbox.ID, port uint16) (net.Conn, error) {
	return s.dialTarget(ctx, portTarget{id, port})
}

type inside struct {
	h   http.Handler
	log *slog.Logger
}

// RoundTrip implements http.RoundTripper.
func (i *inside) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	in := r.Clone(ctx)
	in.RequestURI, in.Host = r.URL.RequestURI(), r.URL.Host
	switch {
	case in.Body == nil:
		in.Body = http.NoBody
	case in.ContentLength == 0 && in.Body != http.NoBody:
		in.ContentLength = -1 // to a client 0 is unknown, to a server it is nothing
	}
	pr, pw := io.Pipe()
	a := &answer{header: http.Header{}, body: pw, begun: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer in.Body.Close()
		defer func() {
			// http.ErrAbortHandler says that the body is cut short, as on a connection.
			if p := recover(); p != nil {
				a.start(http.StatusInternalServerError)
				pw.CloseWithError(fmt.Errorf("the answer was cut short: %w", io.ErrUnexpectedEOF))
				if p != http.ErrAbortHandler { // as http.Server does: one request's trouble is not all's
					i.log.Error("a request panicked", "path", in.URL.Path, "panic", p, "stack", string(debug.Stack()))
				}
				return
			}
			a.start(http.StatusOK)
			pw.Close()
		}()
		i.h.ServeHTTP(a, in)
	}()
	stop := context.AfterFunc(ctx, func() { pw.CloseWithError(context.Cause(ctx)) })
	select {
	case <-a.begun:
	case <-ctx.Done():
		<-done
		stop()
		cancel()
		return nil, context.Cause(ctx)
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.status, http.StatusText(a.status)), StatusCode: a.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: a.sent, ContentLength: -1, Request: r,
		Body: &insideBody{Reader: pr, close: func() {
			stop()
			pr.Close()
			cancel()
			<-done
		}},
	}, nil
}

// insideBody waits, when it is closed, until the handler has ended.
type insideBody struct {
	io.Reader
	once  sync.Once
	close func()
}

func (b *insideBody) Close() error {
	b.once.Do(b.close)
	return nil
}

// answer is a ResponseWriter whose header goes to whoever waits for begun, and whose body goes down a pipe.
type answer struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	begun  chan struct{}

	// Set before begun is closed.
	status int
	sent   http.Header
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		a.start(status)
	}
}

func (a *answer) start(status int) {
	a.once.Do(func() {
		a.status, a.sent = status, a.header.Clone()
		close(a.begun)
	})
}

func (a *answer) Write(b []byte) (int, error) {
	a.start(http.StatusOK)
	return a.body.Write(b)
}

// Flush implements http.Flusher: what is written is there.
func (a *answer) Flush() { a.start(http.StatusOK) }
