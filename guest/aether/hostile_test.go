package aether

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/opendsec/dsec/guest/wire"
)

// pair is a connection whose other end the test plays.
func pair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

func frame(kind wire.Kind, id uint32, payload []byte) []byte {
	f, at := wire.Begin(nil, kind, id)
	return wire.Finish(append(f, payload...), at)
}

// peer reads frames and answers some kinds.
func peer(nc net.Conn, answers map[wire.Kind]func(id uint32) []byte) {
	for {
		var head [wire.HeaderSize]byte
		if _, err := io.ReadFull(nc, head[:]); err != nil {
			return
		}
		h, err := wire.ParseHeader(head[:])
		if err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, nc, int64(h.Size)); err != nil {
			return
		}
		if f := answers[h.Kind]; f != nil {
			if _, err := nc.Write(f(h.ID)); err != nil {
				return
			}
		}
	}
}

func ok(id uint32) []byte { return frame(wire.KindReply, id, nil) }

type quiet struct{ closed chan error }

func (q quiet) Output(string, int64, wire.Stream, []byte) {}
func (q quiet) Exited(string, wire.Exit)                  {}
func (q quiet) SessionEnded(string, wire.Exit)            {}
func (q quiet) Closed(err error)                          { q.closed <- err }

func open(t testing.TB, answers map[wire.Kind]func(uint32) []byte) (*Conn, net.Conn, quiet) {
	t.Helper()
	a, b := pair(t)
	answers[wire.KindHello] = ok
	go peer(b, answers)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := Open(ctx, a, 1)
	if err != nil {
		t.Fatal(err)
	}
	q := quiet{make(chan error, 1)}
	c.Serve(q)
	return c, b, q
}

func join(frames ...[]byte) []byte {
	var b []byte
	for _, f := range frames {
		b = append(b, f...)
	}
	return b
}

// TestBrokenProtocol: dsec-init's breaches end the connection, and with it all that waits.
func TestBrokenProtocol(t *testing.T) {
	full := make([]byte, wire.MaxData)
	info := (&wire.FileInfo{Path: "p"}).Append(nil)
	tooMuch := func(id uint32) []byte {
		b := frame(wire.KindReply, id, info)
		for range wire.Window/wire.MaxData + 1 {
			b = append(b, frame(wire.KindData, id, full)...)
		}
		return b
	}
	for name, answer := range map[string]func(uint32) []byte{
		"window": tooMuch,
		"long data": func(id uint32) []byte {
			return join(frame(wire.KindReply, id, info), frame(wire.KindData, id, make([]byte, wire.MaxData+1)))
		},
		"two ends": func(id uint32) []byte {
			return join(frame(wire.KindReply, id, info), frame(wire.KindEnd, id, nil), frame(wire.KindEnd, id, nil))
		},
		"data after end": func(id uint32) []byte {
			return join(frame(wire.KindReply, id, info), frame(wire.KindEnd, id, nil), frame(wire.KindData, id, full))
		},
		"credit": func(id uint32) []byte {
			return join(frame(wire.KindReply, id, info), frame(wire.KindCredit, id, []byte{1}))
		},
		"request":     func(id uint32) []byte { return frame(wire.KindStart, id, nil) },
		"huge frame":  func(uint32) []byte { return []byte{0xff, 0xff, 0xff, 0x7f, byte(wire.KindReply), 0, 0, 0, 0, 0, 0, 0} },
		"descriptors": func(uint32) []byte { return []byte{8, 0, 0, 0, byte(wire.KindReply), 1, 0, 0, 0, 0, 0, 0} },
		"output":      func(uint32) []byte { return frame(wire.KindOutput, 0, []byte("\x01c")) },
		"exit":        func(uint32) []byte { return frame(wire.KindExited, 0, []byte("\xff")) },
	} {
		t.Run(name, func(t *testing.T) {
			c, _, q := open(t, map[wire.Kind]func(uint32) []byte{wire.KindOpenRead: answer})
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			r, _, err := c.OpenRead(ctx, "/p", "", 0, -1)
			// Nothing is read before: that would give credit, or end a stream of which more is to come.
			select {
			case reason := <-q.closed:
				if !errors.Is(reason, ErrClosed) {
					t.Error(reason)
				}
			case <-ctx.Done():
				t.Fatal("the connection is still open")
			}
			for err == nil { // whatever had come in order may be read all the same
				_, err = r.Read(make([]byte, 1<<10))
			}
			if _, err := c.List(ctx); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
}

// TestNoAnswer: calls end with their context, and late answers reach nobody.
func TestNoAnswer(t *testing.T) {
	release := make(chan struct{})
	c, nc, _ := open(t, map[wire.Kind]func(uint32) []byte{
		wire.KindSignal: func(id uint32) []byte {
			<-release
			return ok(id)
		},
		wire.KindResize: ok,
	})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := c.Signal(ctx, "c", 1, false); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	// Answers that nobody asked for are ignored.
	if _, err := nc.Write(join(ok(12345), frame(wire.KindFail, 777, nil), frame(wire.KindData, 99, []byte("x")))); err != nil {
		t.Fatal(err)
	}
	close(release)
	ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Resize(ctx, "c", 1, 1); err != nil {
		t.Error(err)
	}
	if err := c.Input(ctx, "c", make([]byte, wire.MaxInput+1), false); err == nil {
		t.Error("accepted too much input")
	}
	if _, err := c.Start(ctx, &wire.Start{Shell: string(make([]byte, 3<<20))}, nil); err == nil {
		t.Error("accepted too long a command")
	}
	if err := c.Resize(ctx, "c", 1, 1); err != nil {
		t.Error(err)
	}
}

// TestHelloIsBounded: a peer that says nothing, or the wrong thing, ends Open with its context.
func TestHelloIsBounded(t *testing.T) {
	a, b := pair(t)
	go io.Copy(io.Discard, b)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, a, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	a, b = pair(t)
	go func() {
		for range 100 {
			b.Write(frame(wire.KindOutput, 0, nil))
		}
		io.Copy(io.Discard, b)
	}()
	ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := Open(ctx, a, 1); err == nil {
		t.Error("opened")
	}
}

// FuzzFromSandbox: whatever dsec-init sends, the reader neither panics nor hangs.
func FuzzFromSandbox(f *testing.F) {
	f.Add(join(ok(2), frame(wire.KindData, 2, []byte("abc")), frame(wire.KindEnd, 2, nil)))
	f.Add(join(frame(wire.KindFail, 2, []byte{2, 1, 'x'}), frame(wire.KindOutput, 0, []byte("\x01c\x00\x01data"))))
	f.Add(frame(wire.KindExited, 0, (&wire.Exited{Name: "c"}).Append(nil)))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, b := pair(t)
		go func() {
			io.CopyN(io.Discard, b, wire.HeaderSize+2)
			b.Write(ok(1))
			b.Write(data)
			b.Close()
		}()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c, err := Open(ctx, a, 1)
		if err != nil {
			t.Fatal(err)
		}
		q := quiet{make(chan error, 1)}
		c.Serve(q)
		if r, err := c.OpenTar(ctx, "/", ""); err == nil {
			io.Copy(io.Discard, r)
			r.Close()
		}
		<-q.closed
	})
}
