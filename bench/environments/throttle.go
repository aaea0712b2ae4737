package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// throttle stands before a store: so many bytes a second in all, and a delay for each request.
type throttle struct {
	URL   string
	on    atomic.Bool
	bytes atomic.Int64

	rate  float64 // bytes a second
	delay time.Duration
	srv   *http.Server
	done  chan struct{}

	mu   sync.Mutex
	free time.Time // until when what was let through takes
}

// newThrottle serves the store at endpoint, and files below /files/.
func newThrottle(endpoint string, files http.Handler, rate float64, delay time.Duration) (*throttle, error) {
	to, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &throttle{URL: "http://" + l.Addr().String(), rate: rate, delay: delay, done: make(chan struct{})}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // it is signed
		},
		Transport:  &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true, ReadBufferSize: 64 << 10},
		BufferPool: &pool{}, // it is to cost little beside what it stands for
	}
	mux := http.NewServeMux()
	mux.Handle("/files/", http.StripPrefix("/files/", files))
	mux.Handle("/", proxy)
	t.srv = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if t.on.Load() {
			time.Sleep(t.delay)
		}
		mux.ServeHTTP(&slowWriter{ResponseWriter: w, t: t}, r)
	})}
	go func() {
		defer close(t.done)
		_ = t.srv.Serve(l) // until closed
	}()
	return t, nil
}

func (t *throttle) close() {
	_ = t.srv.Close()
	<-t.done
}

// pass lets n bytes through when their turn has come.
func (t *throttle) pass(n int) {
	t.bytes.Add(int64(n))
	if !t.on.Load() {
		return
	}
	took := time.Duration(float64(n) / t.rate * float64(time.Second))
	t.mu.Lock()
	now := time.Now()
	if t.free.Before(now) {
		t.free = now
	}
	t.free = t.free.Add(took)
	wait := t.free.Sub(now)
	t.mu.Unlock()
	if wait > time.Millisecond {
		time.Sleep(wait)
	}
}

// pool lends buffers to the proxy.
type pool struct {
	mu   sync.Mutex
	free [][]byte
}

func (p *pool) Get() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	return make([]byte, 256<<10)
}

func (p *pool) Put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, b)
}

type slowWriter struct {
	http.ResponseWriter
	t *throttle
}

func (w *slowWriter) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		n := min(len(p), 64<<10)
		w.t.pass(n)
		m, err := w.ResponseWriter.Write(p[:n])
		total += m
		if err != nil {
			return total, err
		}
		p = p[n:]
	}
	return total, nil
}

// ReadFrom keeps the server from going round Write.
func (w *slowWriter) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, 64<<10))
}

func (w *slowWriter) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}
