package engine_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/cluster/engine"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestSurvivesRestart(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	o := engine.Options{Dir: filepath.Join(dir, "d"), Socket: filepath.Join(dir, "e.sock"), Log: slog.New(slog.DiscardHandler)}
	e, err := engine.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := engine.Dial("unix://" + o.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	put, err := c.Put(ctx, "k", "v")
	if err != nil {
		t.Fatal(err)
	}
	watch := c.Watch(ctx, "k", clientv3.WithRev(put.Header.Revision+1), clientv3.WithCreatedNotify())
	if first := <-watch; !first.Created {
		t.Fatalf("watch: %+v", first)
	}
	e.Close()
	if e, err = engine.Start(ctx, o); err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	got, err := c.Get(ctx, "k")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "v" {
		t.Fatalf("after restart: %v, %v", got, err)
	}
	if _, err := c.Put(ctx, "k", "w"); err != nil {
		t.Fatal(err)
	}
	if ev := <-watch; len(ev.Events) != 1 || string(ev.Events[0].Kv.Value) != "w" {
		t.Fatalf("watch across a restart: %+v", ev)
	}
}

func TestLongSocketPath(t *testing.T) {
	_, err := engine.Start(context.Background(), engine.Options{Dir: t.TempDir(), Socket: "/" + strings.Repeat("x", 120)})
	if err == nil || !strings.Contains(err.Error(), "shorter state directory") {
		t.Fatalf("got %v", err)
	}
}
