package netrules_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/cluster/engine"
	"github.com/opendsec/dsec/cluster/netrules"
	"github.com/opendsec/dsec/sandbox"
)

func allow(targets ...string) *dsecv1.NetworkPolicy {
	p := &dsecv1.NetworkPolicy{}
	for _, t := range targets {
		p.Rules = append(p.Rules, &dsecv1.NetworkRule{Target: t, Allow: true})
	}
	return p
}

// TestFollowed: what one store writes another one has in memory, as of a revision that grows.
func TestFollowed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "e.sock")
	quiet := slog.New(slog.DiscardHandler)
	e, err := engine.Start(ctx, engine.Options{Dir: filepath.Join(dir, "d"), Socket: socket, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	etcd, err := engine.Dial("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	writer, reader := netrules.New(etcd, quiet), netrules.New(etcd, quiet)
	if err := writer.SetProject(ctx, "early", allow("pypi")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	run, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { reader.Run(run) })

	// until waits for what the reader is told.
	var revision int64
	until := func(what string, ok func(c *dsecv1.SetCeilingsRequest) bool) {
		t.Helper()
		for {
			c, changed, err := reader.Ceilings(ctx)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if c.Revision < revision {
				t.Fatalf("%s: revision %d after %d", what, c.Revision, revision)
			}
			revision = c.Revision
			if ok(c) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				t.Fatalf("%s: never", what)
			}
		}
	}
	until("the first", func(c *dsecv1.SetCeilingsRequest) bool { return len(c.Projects) == 1 && c.Projects["early"] != nil })
	before := revision
	if err := writer.SetProject(ctx, "late", allow("npm", "pypi")); err != nil {
		t.Fatal(err)
	}
	until("another", func(c *dsecv1.SetCeilingsRequest) bool {
		return len(c.Projects["late"].GetRules()) == 2 && c.Revision > before
	})
	if err := writer.SetProject(ctx, "early", nil); err != nil {
		t.Fatal(err)
	}
	until("one less", func(c *dsecv1.SetCeilingsRequest) bool { return len(c.Projects) == 1 })

	for target, p := range map[string]*dsecv1.NetworkPolicy{"base/a": allow("pypi"), "base/a@v2": allow("npm"), "toolkit/lib/x:1": allow("golang"), "environment/e": allow("debian")} {
		if err := writer.SetDefault(ctx, target, p); err != nil {
			t.Fatal(err)
		}
	}
	// What cannot be read is none, not nothing.
	if _, err := etcd.Put(ctx, "/dsec/network/projects/broken", "{"); err != nil {
		t.Fatal(err)
	}
	until("all", func(c *dsecv1.SetCeilingsRequest) bool { return c.Projects["broken"] != nil })
	layers := func(version string) []*dsecv1.ResolvedLayer {
		return []*dsecv1.ResolvedLayer{{Kind: "base", Name: "a", Version: version}, {Kind: "workspace", Name: "a", Version: "v1"}, {Kind: "toolkit", Name: "lib/x:1", Version: "v1"}}
	}
	for version, want := range map[string]string{"v1": "environment base/a pypi, environment toolkit/lib/x:1 golang", "v2": "environment base/a@v2 npm, environment toolkit/lib/x:1 golang"} {
		ceiling, _, of, err := reader.Of(ctx, "broken", "", layers(version))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range of {
			got = append(got, l.Source+" "+l.Policy.Rules[0].Target)
		}
		if strings.Join(got, ", ") != want || ceiling.GetRules()[0].GetTarget() != "none" {
			t.Errorf("%s: %q under %v, want %q under none", version, got, ceiling, want)
		}
	}
	if _, _, of, err := reader.Of(ctx, "late", "e", layers("v1")); err != nil || len(of) != 3 || of[0].Source != "environment e" {
		t.Errorf("of a named environment: %v, %v", of, err)
	}
	if c, _, of, err := reader.Of(ctx, "unknown", "none", nil); c != nil || of != nil || err != nil {
		t.Errorf("of an unknown project: %v, %v, %v", c, of, err)
	}
	for _, name := range []string{"", "A", "a b", "-a", "a/b", strings.Repeat("a", 64)} {
		if err := writer.SetProject(ctx, name, allow("pypi")); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("project %q: %v", name, err)
		}
	}
	huge := allow()
	for range 40000 {
		huge.Rules = append(huge.Rules, &dsecv1.NetworkRule{Target: "a.example.org", Allow: true})
	}
	if err := writer.SetProject(ctx, "huge", huge); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("a huge policy: %v", err)
	}
	list, err := writer.Defaults(ctx)
	if err != nil || len(list) != 4 || list[1].Target != "base/a@v2" {
		t.Errorf("defaults: %v, %v", list, err)
	}
}

// TestWithoutEngine: unknown is not none.
func TestWithoutEngine(t *testing.T) {
	etcd, err := engine.Dial("unix://" + filepath.Join(t.TempDir(), "none.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	s := netrules.New(etcd, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, _, err := s.Of(ctx, "default", "", nil); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("without the engine: %v", err)
	}
}

// TestForget: the defaults of what was deleted go, but for one that was set since: its name is another's by then.
func TestForget(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "e.sock")
	quiet := slog.New(slog.DiscardHandler)
	e, err := engine.Start(ctx, engine.Options{Dir: filepath.Join(dir, "d"), Socket: socket, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	etcd, err := engine.Dial("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	s := netrules.New(etcd, quiet)
	set := func(target string) {
		t.Helper()
		if err := s.SetDefault(ctx, target, allow("pypi")); err != nil {
			t.Fatal(err)
		}
	}
	set("base/a")
	set("base/a@v1")
	set("base/ab")
	revision, err := s.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	set("base/a@v1") // again: what has the name now
	if err := s.Forget(ctx, revision, "base/a", "base/a@v1", "base/none"); err != nil {
		t.Fatal(err)
	}
	left, err := s.Defaults(ctx)
	if err != nil || len(left) != 2 || left[0].GetTarget() != "base/a@v1" || left[1].GetTarget() != "base/ab" {
		t.Errorf("left: %v, %v", left, err)
	}
}
