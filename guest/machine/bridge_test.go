package machine

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/guest/wire"
)

// rig is a bridge over a socket pair in place of a port, with a listener in place of dsec-init.
type rig struct {
	t      *testing.T
	b      *bridge
	host   *os.File
	listen *net.UnixListener
	closed chan []byte
}

func newRig(t *testing.T) *rig {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, host: os.NewFile(uintptr(fds[0]), "host"), closed: make(chan []byte, 4)}
	f := os.NewFile(uintptr(fds[1]), "port")
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	if r.listen, err = net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	r.b = newBridge(&port{f, raw}, socket)
	r.b.closed = func(token []byte) { r.closed <- token }
	served := make(chan struct{})
	go func() { defer close(served); r.b.serve() }()
	t.Cleanup(func() {
		r.listen.Close()
		f.Close()
		<-served
		r.host.Close()
	})
	return r
}

func token(c byte) []byte { return bytes.Repeat([]byte{c}, control.TokenSize) }

// begin begins a connection as a node does.
func (r *rig) begin(tok, stale []byte) *net.UnixConn {
	r.t.Helper()
	synced := make(chan error, 1)
	go func() { synced <- r.b.sync(tok) }()
	var held []byte
	for b := make([]byte, 4096); !bytes.Contains(held, tok); {
		n, err := r.host.Read(b)
		if err != nil {
			r.t.Fatal(err)
		}
		held = append(held, b[:n]...)
	}
	if err := <-synced; err != nil {
		r.t.Fatal(err)
	}
	r.write(append(stale, tok...))
	c, err := r.listen.AcceptUnix()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *rig) write(p []byte) {
	r.t.Helper()
	if _, err := r.host.Write(p); err != nil {
		r.t.Fatal(err)
	}
}

func frame(kind wire.Kind, id uint32, payload []byte) []byte {
	b, at := wire.Begin(nil, kind, id)
	return wire.Finish(append(b, payload...), at)
}

func (r *rig) want(c *net.UnixConn, want []byte) {
	r.t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		r.t.Fatalf("dsec-init got %q, %v; want %q", got, err, want)
	}
}

// TestBridge: frames pass whole and in order, and a connection begins afresh whatever the one before had left behind:
// half a frame of the node's, bytes of dsec-init's that nobody read.
func TestBridge(t *testing.T) {
	r := newRig(t)
	c := r.begin(token('a'), nil)
	one, big := frame(wire.KindList, 1, nil), frame(wire.KindInput, 2, bytes.Repeat([]byte("x"), 200<<10))
	go func() { _, _ = r.host.Write(append(bytes.Clone(one), big...)) }()
	r.want(c, append(bytes.Clone(one), big...))

	if _, err := c.Write([]byte("never read by the node that died")); err != nil {
		t.Fatal(err)
	}
	r.write(big[:1000]) // it died in the middle of this
	c2 := r.begin(token('b'), []byte("stale"))
	if n, _ := io.Copy(io.Discard, c); n > 0 { // it ends; what was half a frame does not arrive
		t.Errorf("the old connection got %d bytes", n)
	}
	r.write(one)
	r.want(c2, one)
	if _, err := c2.Write([]byte("fresh")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(r.host, got); err != nil || string(got) != "fresh" {
		t.Fatalf("the node got %q, %v", got, err)
	}
	select {
	case tok := <-r.closed:
		t.Errorf("connection %q was reported as closed", tok[:1])
	default:
	}

	c2.Close() // by dsec-init: the node is told which one
	if tok := <-r.closed; !bytes.Equal(tok, token('b')) {
		t.Errorf("closed %q", tok)
	}
}

// TestBridgeRoot: the claim gets the root beside it; frames with descriptors of their own, or that lie about their
// length, end the connection.
func TestBridgeRoot(t *testing.T) {
	r := newRig(t)
	c := r.begin(token('a'), nil)
	root, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r.b.setRoot(root)
	r.write(frame(wire.KindClaim, 7, []byte("claim")))
	buf, oob := make([]byte, 64), make([]byte, 64)
	n, oobn, _, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		t.Fatal(err)
	}
	h, err := wire.ParseHeader(buf)
	if err != nil || h.FDs != 1 || h.Kind != wire.KindClaim || string(buf[wire.HeaderSize:n]) != "claim" {
		t.Fatalf("%+v, %v, %q", h, err, buf[:n])
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) != 1 {
		t.Fatalf("descriptors: %v, %v", msgs, err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("descriptors: %v, %v", fds, err)
	}
	unix.Close(fds[0])
	for _, bad := range [][]byte{{0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0}, wire.AppendHeader(nil, wire.KindList, 1, 2, 0)} {
		r.write(bad)
		<-r.closed
		c = r.begin(token('b'), nil)
	}
	r.write(frame(wire.KindList, 1, nil))
	r.want(c, frame(wire.KindList, 1, nil))
}
