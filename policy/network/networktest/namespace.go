package networktest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Namespace is a network namespace without a name. Sockets that are made through it stay in it.
type Namespace struct {
	handle netns.NsHandle
	nl     *netlink.Handle

	mu     sync.Mutex
	idle   []chan func() // of threads that are in the namespace and wait for work
	closed bool
	wg     sync.WaitGroup
}

// NewNamespace makes a namespace whose loopback is up. It is closed with the test; it ends when the last socket,
// process and descriptor that refers to it does.
func NewNamespace(t testing.TB) *Namespace {
	t.Helper()
	n, err := makeNamespace()
	if err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(n.close)
	return n
}

func makeNamespace() (*Namespace, error) {
	type made struct {
		h   netns.NsHandle
		err error
	}
	result := make(chan made)
	go func() {
		// This thread is never unlocked: it has left its namespace, and ends with the goroutine.
		runtime.LockOSThread()
		h, err := netns.New()
		result <- made{h, err}
	}()
	m := <-result
	if m.err != nil {
		return nil, m.err
	}
	nl, err := netlink.NewHandleAt(m.h)
	if err != nil {
		m.h.Close()
		return nil, err
	}
	n := &Namespace{handle: m.h, nl: nl}
	lo, err := nl.LinkByName("lo")
	if err == nil {
		err = nl.LinkSetUp(lo)
	}
	if err != nil {
		n.close()
		return nil, fmt.Errorf("loopback: %w", err)
	}
	return n, nil
}

func (n *Namespace) close() {
	n.mu.Lock()
	n.closed = true
	for _, jobs := range n.idle {
		close(jobs)
	}
	n.idle = nil
	n.mu.Unlock()
	n.wg.Wait()
	n.nl.Close()
	n.handle.Close()
}

// FD is the namespace's descriptor, for setns; valid until the test ends.
func (n *Namespace) FD() int { return int(n.handle) }

// Netlink configures the namespace.
func (n *Namespace) Netlink() *netlink.Handle { return n.nl }

// Do runs f on a thread that is in the namespace. Sockets that f opens, and processes that it starts, are in the
// namespace; goroutines that it starts are not.
func (n *Namespace) Do(f func() error) error {
	result := make(chan error, 1)
	job := func() { result <- f() }
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return errors.New("the namespace is closed: its test has ended")
	}
	if last := len(n.idle) - 1; last >= 0 {
		jobs := n.idle[last]
		n.idle = n.idle[:last]
		n.mu.Unlock()
		jobs <- job
		return <-result
	}
	n.wg.Go(func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		if err := netns.Set(n.handle); err != nil {
			result <- fmt.Errorf("enter the namespace: %w", err)
			return
		}
		job()
		for {
			jobs := make(chan func(), 1)
			n.mu.Lock()
			if n.closed {
				n.mu.Unlock()
				return
			}
			n.idle = append(n.idle, jobs)
			n.mu.Unlock()
			next, ok := <-jobs
			if !ok {
				return
			}
			next()
		}
	})
	n.mu.Unlock()
	return <-result
}

// Listen listens in the namespace.
func (n *Namespace) Listen(network, address string) (net.Listener, error) {
	var ln net.Listener
	err := n.Do(func() (err error) {
		ln, err = net.Listen(network, address)
		return err
	})
	return ln, err
}

// ListenPacket opens a packet socket in the namespace.
func (n *Namespace) ListenPacket(network, address string) (net.PacketConn, error) {
	var pc net.PacketConn
	err := n.Do(func() (err error) {
		pc, err = net.ListenPacket(network, address)
		return err
	})
	return pc, err
}

// Dial connects from the namespace. The address must be numeric: a name would be resolved on another thread.
func (n *Namespace) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var c net.Conn
	err := n.Do(func() (err error) {
		var d net.Dialer
		d.FallbackDelay = -1 // happy eyeballs would dial on other threads
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Start starts cmd in the namespace.
func (n *Namespace) Start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

// File is a descriptor of the namespace that is the caller's own to close.
func (n *Namespace) File() (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", n.handle))
}
