package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
)

const (
	// maxConnections of one listener; more wait in the kernel's queue.
	maxConnections = 16384
	minConnections = 64
	// drain is how long requests in flight may go on once the server is asked to stop. Streams do not end by
	// themselves: they are cut then, and clients attach again.
	drain = 3 * time.Second
)

// Serve serves h on ln (HTTP/1.1 and, without TLS, HTTP/2 for gRPC) until ctx is done. Clients that are slow to
// send a header, or send a long one, are cut off; bodies and answers may take any time.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, l *slog.Logger) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(l.Handler(), slog.LevelDebug),
		Protocols:         new(http.Protocols),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 250},
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(netutil.LimitListener(ln, connections())) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve on %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if err := srv.Shutdown(last); err != nil {
		_ = srv.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", ln.Addr(), err)
	}
	return nil
}

// connections is how many one listener may have: each may take two descriptors (its own and one to an edge), and
// there are two listeners.
func connections() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return minConnections
	}
	return int(max(minConnections, min(maxConnections, l.Cur/5)))
}
