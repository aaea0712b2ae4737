package hold

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// maxHeld bounds the descriptors held; the process's own limit is 20,000 on small machines.
const maxHeld = 15000

// maxMessage bounds an answer, maxShort one that holds no names, bytes.
const (
	maxMessage = 1 << 20
	maxShort   = 4 << 10
)

// Serve holds descriptors until ctx ends. It takes the lock of the socket (LockPath), waiting a moment for a
// predecessor that ends, removes a stale socket and makes its own, mode 0600. Error: sandbox.ErrConflict when another
// process holds for this socket, which goes on.
func Serve(ctx context.Context, socket string) error { return ServeWith(ctx, socket, Options{}) }

// ServeWith is Serve with options.
func ServeWith(ctx context.Context, socket string, o Options) error {
	lock, err := takeLock(ctx, socket)
	if err != nil {
		return err
	}
	defer lock.Close()
	_ = os.Remove(socket)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	s := &server{o: o, held: map[string]*os.File{}, leases: map[string]*lease{}, conns: map[net.Conn]bool{}}
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			s.closeAll()
			s.wg.Wait()
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		s.wg.Add(1)
		go s.serve(c)
	}
}

type server struct {
	wg sync.WaitGroup
	o  Options

	mu     sync.Mutex
	held   map[string]*os.File
	leases map[string]*lease
	conns  map[net.Conn]bool
	closed bool
}

func (s *server) serve(c *net.UnixConn) {
	defer s.wg.Done()
	s.mu.Lock()
	s.conns[c] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		c.Close()
	}()
	buf := make([]byte, 4096)
	for {
		n, files, err := linux.ReceiveFiles(c, buf)
		if err != nil {
			return
		}
		reply, out := s.handle(string(buf[:n]), files)
		if err := linux.SendFiles(c, []byte(reply), out...); err != nil {
			return
		}
	}
}

// handle runs one request; the files that it does not keep are closed.
func (s *server) handle(msg string, files []*os.File) (reply string, out []*os.File) {
	verb, name, _ := strings.Cut(msg, " ")
	s.mu.Lock()
	defer s.mu.Unlock()
	if verb == "put" && len(files) == 1 && name != "" {
		old, had := s.held[name]
		if !had && len(s.held) >= maxHeld {
			files[0].Close()
			return "full", nil
		}
		if had {
			s.endLease(name)
			old.Close()
		}
		s.held[name] = files[0]
		return "ok", nil
	}
	for _, f := range files {
		f.Close()
	}
	if verb == "lease" {
		return s.renew(cutLease(name)), nil
	}
	f, have := s.held[name]
	switch {
	case verb == "get" && have:
		return "ok", []*os.File{f}
	case verb == "get", verb == "del" && !have:
		return "none", nil
	case verb == "del":
		s.endLease(name)
		f.Close()
		delete(s.held, name)
		return "ok", nil
	case verb == "list":
		names := make([]string, 0, len(s.held))
		for n := range s.held {
			if strings.HasPrefix(n, name) {
				names = append(names, n)
			}
		}
		sort.Strings(names)
		return "ok " + strings.Join(names, "\n"), nil
	}
	return "bad request", nil
}

func (s *server) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
	s.closed = true
	for name := range s.leases {
		s.endLease(name)
	}
	for _, f := range s.held {
		f.Close()
	}
	s.held = map[string]*os.File{}
}

// Client speaks to a holder; it connects again when the holder was restarted (which then holds nothing).
// A nil *Client holds nothing and finds nothing: what outlives the process is then only what others use.
type Client struct {
	socket string

	mu      sync.Mutex
	c       *net.UnixConn
	reached bool // once at least
}

// startPatience is how long a holder that was never reached may take to appear: it is started beside its clients.
const startPatience = 5 * time.Second

// NewClient returns a client of the holder at the socket; it connects at first use.
func NewClient(socket string) *Client { return &Client{socket: socket} }

// Put gives a descriptor to the holder; an older one of the same name is dropped.
func (h *Client) Put(name string, f *os.File) error {
	if h == nil {
		return nil
	}
	reply, _, err := h.ask("put "+name, f)
	if err == nil && reply != "ok" {
		err = fmt.Errorf("hold %s: %s: %w", name, reply, sandbox.ErrExhausted)
	}
	return err
}

// Get takes a copy of a held descriptor. Error: sandbox.ErrNotFound.
func (h *Client) Get(name string) (*os.File, error) {
	if h == nil {
		return nil, fmt.Errorf("held %s: %w", name, sandbox.ErrNotFound)
	}
	_, files, err := h.ask("get " + name)
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		return nil, fmt.Errorf("held %s: %w", name, sandbox.ErrNotFound)
	}
	return files[0], nil
}

// Drop makes the holder close a descriptor.
func (h *Client) Drop(name string) error {
	if h == nil {
		return nil
	}
	_, _, err := h.ask("del " + name)
	return err
}

// List returns the names held that begin with prefix.
func (h *Client) List(prefix string) ([]string, error) {
	if h == nil {
		return nil, nil
	}
	reply, _, err := h.ask("list " + prefix)
	if err != nil {
		return nil, err
	}
	names := strings.TrimPrefix(reply, "ok ")
	if names == "" {
		return nil, nil
	}
	return strings.Split(names, "\n"), nil
}

// Close closes the connection; what is held stays held.
func (h *Client) Close() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.c != nil {
		h.c.Close()
		h.c = nil
	}
}

// dial connects, patiently the first time.
func (h *Client) dial() (*net.UnixConn, error) {
	end := time.Now().Add(startPatience)
	for {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: h.socket, Net: "unixpacket"})
		absent := errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
		if !absent || h.reached || time.Now().After(end) {
			return c, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// ask sends one request, once more on a new connection if the old one was dead.
func (h *Client) ask(msg string, files ...*os.File) (string, []*os.File, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var last error
	for try := range 2 {
		if h.c == nil {
			c, err := h.dial()
			if err != nil {
				return "", nil, fmt.Errorf("hold: %w: %w", sandbox.ErrUnavailable, err)
			}
			h.c, h.reached = c, true
		}
		_ = h.c.SetDeadline(time.Now().Add(5 * time.Second))
		last = linux.SendFiles(h.c, []byte(msg), files...)
		if last == nil {
			size := maxShort
			if strings.HasPrefix(msg, "list ") {
				size = maxMessage
			}
			buf := make([]byte, size)
			n, got, err := linux.ReceiveFiles(h.c, buf)
			if err == nil {
				return string(buf[:n]), got, nil
			}
			last = err
		}
		h.c.Close()
		h.c = nil
		if try == 0 && !errors.Is(last, io.EOF) && !errors.Is(last, net.ErrClosed) && !isReset(last) {
			break
		}
	}
	return "", nil, fmt.Errorf("hold: %w: %w", sandbox.ErrUnavailable, last)
}
