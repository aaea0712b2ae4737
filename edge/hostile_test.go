package edge_test

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fake"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// forger passes on what a dsec-init says, frame by frame, and lets a test add to it.
type forger struct {
	net.Conn
	r  *io.PipeReader
	mu sync.Mutex // held for a whole frame
	w  *io.PipeWriter
}

func newForger(c net.Conn) *forger {
	f := &forger{Conn: c}
	f.r, f.w = io.Pipe()
	go f.pass()
	return f
}

func (f *forger) pass() {
	head := make([]byte, 4)
	for {
		if _, err := io.ReadFull(f.Conn, head); err != nil {
			f.w.CloseWithError(err)
			return
		}
		b := make([]byte, 4+binary.LittleEndian.Uint32(head))
		copy(b, head)
		if _, err := io.ReadFull(f.Conn, b[4:]); err != nil {
			f.w.CloseWithError(err)
			return
		}
		if f.say(b) != nil {
			return
		}
	}
}

// say adds bytes; an error tells that the edge listens no more.
func (f *forger) say(b []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.w.Write(b)
	return err
}

func (f *forger) Read(p []byte) (int, error) { return f.r.Read(p) }

func (f *forger) Close() error {
	f.r.Close()
	return f.Conn.Close()
}

func outputFrame(command string, offset int64, data string) []byte {
	b, at := wire.Begin(nil, wire.KindOutput, 0)
	b = (&wire.Output{Command: command, Offset: offset, Stream: wire.Stdout, Data: []byte(data)}).AppendHead(b)
	return wire.Finish(append(b, data...), at)
}

func exitFrame(command string, x wire.Exit) []byte {
	b, at := wire.Begin(nil, wire.KindExited, 0)
	return wire.Finish((&wire.Exited{Name: command, Exit: x}).Append(b), at)
}

// TestForgedChannel: whatever a dsec-init that has been taken over says, it concerns its own sandbox alone, which may
// end by that and is then to blame.
func TestForgedChannel(t *testing.T) {
	var mu sync.Mutex
	channels := map[sandbox.ID]*forger{}
	n := sandboxtest.Start(t, factoryOf(fake.Options{Wrap: func(id sandbox.ID, c net.Conn) net.Conn {
		f := newForger(c)
		mu.Lock()
		defer mu.Unlock()
		channels[id] = f
		return f
	}}), nil)
	neighbour := n.Create(t, nil)
	garbage := make([]byte, 64<<10)
	for i := range garbage {
		garbage[i] = byte(rand.Uint32())
	}
	flood := func(one []byte) func(*forger) {
		return func(f *forger) {
			for range 100_000 {
				if f.say(one) != nil {
					return
				}
			}
		}
	}
	once := func(frames ...[]byte) func(*forger) {
		return func(f *forger) {
			for _, b := range frames {
				if f.say(b) != nil {
					return
				}
			}
		}
	}
	for name, attack := range map[string]func(*forger){
		"Garbage":         once(garbage),
		"HugeFrame":       once([]byte{0xff, 0xff, 0xff, 0x7f, byte(wire.KindOutput), 0, 0, 0, 0, 0, 0, 0}),
		"NeverWhole":      once([]byte{0xff, 0xff, 0, 0, byte(wire.KindOutput), 0, 0, 0}),
		"OutputFarAway":   once(outputFrame("c1", 1<<50, "x"), outputFrame("c1", math.MaxInt64-1, "xyz"), outputFrame("c1", -5, "x")),
		"OutputBackwards": once(outputFrame("c1", 100, "abc"), outputFrame("c1", 0, "abc"), outputFrame("c1", 50, "abc")),
		"OutputOfOthers":  flood(outputFrame("c77", 0, "x")),
		"OutputFlood":     flood(outputFrame("c1", 0, "again and again")),
		"OddNames":        once(outputFrame("../../x", 0, "x"), outputFrame("", 0, "x"), outputFrame("c99999999999999999999", 0, "x"), outputFrame("c-1", 0, "x")),
		"ExitTwice":       once(exitFrame("c1", wire.Exit{Code: 0, OutputEnd: 1 << 50}), exitFrame("c1", wire.Exit{Code: 1})),
		"ExitOfOthers":    flood(exitFrame("c77", wire.Exit{})),
		"OddExit":         once(exitFrame("c1", wire.Exit{Code: -7, Signal: 1 << 30, DurationMicros: -1, OutputEnd: -1})),
		"ReplyToNobody":   flood(wire.Finish(wire.AppendHeader(nil, wire.KindReply, 0xfffffff0, 0, 0), 0)),
		"Request":         once(wire.AppendHeader(nil, wire.KindStart, 7, 0, 0)),
	} {
		t.Run(name, func(t *testing.T) {
			b := n.Create(t, nil)
			b.Detach(&dsecv1.CommandSpec{Shell: "sleep 600"})
			mu.Lock()
			f := channels[sandbox.ID(b.ID)]
			mu.Unlock()
			said := make(chan struct{})
			go func() { defer close(said); attack(f) }()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for range 20 { // while it speaks
				r, err := n.Commands.Exec(ctx, &dsecv1.ExecRequest{SandboxId: neighbour.ID, Command: &dsecv1.CommandSpec{Shell: "echo well"}})
				if err != nil || string(r.Stdout) != "well\n" {
					t.Fatalf("the neighbour: %v, %v", r, err)
				}
			}
			select {
			case <-said:
			case <-ctx.Done():
				t.Error("the edge listens no more, and has not hung up")
			}
			got := b.Get()
			if got.End != nil && got.End.Blame != dsecv1.Blame_BLAME_TASK {
				t.Errorf("ended by %v", got.End)
			}
			b.Stop() // nothing hangs
		})
	}
}
