package engine

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// told is a Follower that passes on what it is told: the number of loaded keys, and then events.
type told struct {
	loads  chan int
	events chan []*clientv3.Event
}

func (f *told) Load(r *clientv3.GetResponse)   { f.loads <- len(r.Kvs) }
func (f *told) Apply(events []*clientv3.Event) { f.events <- events }

// An engine in which nobody writes is followed all the same, and what was loaded is not told again.
func TestFollowIdle(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	o := Options{Dir: filepath.Join(dir, "d"), Socket: filepath.Join(dir, "e.sock"), Log: slog.New(slog.DiscardHandler)}
	e, err := Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c, err := Dial("unix://" + o.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Put(ctx, "p/old", "v"); err != nil {
		t.Fatal(err)
	}
	f := &told{loads: make(chan int, 100), events: make(chan []*clientv3.Event, 100)}
	done := make(chan struct{})
	following, stop := context.WithCancel(ctx)
	go func() {
		defer close(done)
		Follow(following, c, "p/", f, slog.New(slog.DiscardHandler))
	}()
	defer func() { stop(); <-done }()
	if n := <-f.loads; n != 1 {
		t.Fatalf("%d keys were loaded", n)
	}
	for range 2 { // what comes with the first answer need not be a sign of life
		select {
		case events := <-f.events:
			if len(events) > 0 {
				t.Fatalf("told again: %v", events)
			}
		case <-f.loads:
			t.Fatal("the idle engine fell silent")
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
	}
	if _, err := c.Put(ctx, "p/new", "w"); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case events := <-f.events:
			if len(events) == 0 {
				continue
			}
			if len(events) != 1 || string(events[0].Kv.Key) != "p/new" {
				t.Fatalf("events: %v", events)
			}
			return
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
	}
}
