package qemu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/sandbox"
)

// heap is what the process holds after a collection, bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// patience is what a caller has.
func patience(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// TestControlFlood: a machine that says much and nothing that was asked for costs its caller's patience and no memory, and is
// understood again afterwards.
func TestControlFlood(t *testing.T) {
	ours, theirs := net.Pipe()
	events := 0
	c := NewControl(ours, func(*control.Reply) { events++ })
	defer c.Close()
	asked := make(chan control.Request, 4)
	go func() {
		s := bufio.NewScanner(theirs)
		for s.Scan() {
			var q control.Request
			if len(s.Bytes()) > 0 && json.Unmarshal(s.Bytes(), &q) == nil {
				asked <- q
			}
		}
	}()
	before := heap()
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		for _, piece := range []string{
			strings.Repeat("x", 8<<20),                           // a line without end
			strings.Repeat("{\"n\":1}\n", 1<<13),                 // answers that nobody asked for
			strings.Repeat("\n", 1<<16),                          // nothing
			strings.Repeat("{\"event\":\"x\"}\n", 1000),          // events
			strings.Repeat("[", 1<<16) + "\n",                    // depth
			"{\"n\":18446744073709551615,\"stats\":{}}\n\x00\n",  // numbers, bytes
			"{\"n\":-1}\n{\"n\":\"x\"}\n{\"n\":1,\"error\":7}\n", // types
		} {
			for range 2 {
				if _, err := theirs.Write([]byte(piece)); err != nil {
					return
				}
			}
		}
		_, _ = theirs.Write([]byte("\n"))
	}()
	if _, err := c.Call(patience(t, 50*time.Millisecond), &control.Request{Op: control.OpStats}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
	<-flooded
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("the flood takes %d bytes", grown)
	}
	<-asked
	go func() {
		q := <-asked
		b, _ := json.Marshal(&control.Reply{N: q.N, Stats: &control.Stats{Pids: 7}})
		_, _ = theirs.Write(append(b, '\n'))
	}()
	r, err := c.Call(patience(t, time.Minute), &control.Request{Op: control.OpStats})
	if err != nil || r.Stats == nil || r.Stats.Pids != 7 {
		t.Errorf("after the flood: %+v, %v", r, err)
	}
	if events != 2000 {
		t.Errorf("%d events", events)
	}
	theirs.Close()
	if _, err := c.Call(patience(t, time.Minute), &control.Request{Op: control.OpStats}); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("when it is gone: %v", err)
	}
}

// TestChannelNeverBegins: a machine that never sends the token of a connection, or something else without end, ends the attempt.
func TestChannelNeverBegins(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "channel"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	open := func(patient time.Duration, serve func(net.Conn)) error {
		t.Helper()
		ours, theirs := net.Pipe()
		c := NewControl(ours, nil)
		defer c.Close()
		go func() { _, _ = bufio.NewReader(theirs).WriteTo(&bytes.Buffer{}) }()
		go func() {
			nc, err := l.Accept()
			if err == nil {
				serve(nc)
				nc.Close()
			}
		}()
		nc, err := OpenChannel(patience(t, patient), dir, "channel", c)
		if err == nil {
			nc.Close()
		}
		return err
	}
	if err := open(50*time.Millisecond, func(nc net.Conn) { _, _ = nc.Read(make([]byte, 1)) }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silence: %v", err)
	}
	before := heap()
	err = open(time.Minute, func(nc net.Conn) {
		junk := make([]byte, 64<<10)
		for {
			if _, err := nc.Write(junk); err != nil {
				return
			}
		}
	})
	if err == nil || !strings.Contains(err.Error(), "sends something else") {
		t.Errorf("a flood: %v", err)
	}
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("the flood takes %d bytes", grown)
	}
}
