package environment_test

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/cluster/engine"
	"github.com/opendsec/dsec/environment"
	"github.com/opendsec/dsec/sandbox"
)

const (
	base      = dsecv1.LayerKind_LAYER_KIND_BASE
	workspace = dsecv1.LayerKind_LAYER_KIND_WORKSPACE
	toolkit   = dsecv1.LayerKind_LAYER_KIND_TOOLKIT
)

// each runs a test on both kinds of KV.
func each(t *testing.T, f func(t *testing.T, kv environment.KV)) {
	t.Run("memory", func(t *testing.T) { f(t, environment.NewMemory()) })
	t.Run("etcd", func(t *testing.T) {
		dir := t.TempDir()
		sock := filepath.Join(dir, "s")
		e, err := engine.Start(t.Context(), engine.Options{Dir: filepath.Join(dir, "d"), Socket: sock, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		client, err := engine.Dial("unix://" + sock)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		f(t, environment.NewEtcd(client, "catalogue/"))
	})
}

func digest(n int) string { return fmt.Sprintf("b3:%064x", n) }

func layerOf(kind dsecv1.LayerKind, name string, n int) *dsecv1.Layer {
	return &dsecv1.Layer{Kind: kind, Name: name, Digest: digest(n)}
}

func publish(t *testing.T, c *environment.Catalogue, l *dsecv1.Layer) *dsecv1.Layer {
	t.Helper()
	out, _, err := c.Publish(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestKV(t *testing.T) {
	each(t, func(t *testing.T, kv environment.KV) {
		ctx := t.Context()
		if err := kv.Put(ctx, "a", []byte("1"), 7); !errors.Is(err, sandbox.ErrConflict) {
			t.Errorf("put at a revision that is not there: %v", err)
		}
		for n := range 1200 { // more than a page
			if err := kv.Put(ctx, fmt.Sprintf("p/%04d", n), []byte{byte(n)}, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := kv.Put(ctx, "p/0000", nil, 0); !errors.Is(err, sandbox.ErrConflict) {
			t.Errorf("put over what is there: %v", err)
		}
		got, err := kv.Get(ctx, "p/0007", "none", "p/0001")
		if err != nil || len(got) != 3 || got[0].Value[0] != 7 || got[1].Revision != 0 || got[2].Key != "p/0001" {
			t.Fatalf("Get = %v, %v", got, err)
		}
		if err := kv.Put(ctx, "p/0007", []byte("new"), got[0].Revision); err != nil {
			t.Fatal(err)
		}
		if err := kv.Delete(ctx, "p/0007", got[0].Revision); !errors.Is(err, sandbox.ErrConflict) {
			t.Errorf("delete at an old revision: %v", err)
		}
		all, err := kv.List(ctx, "p/")
		if err != nil || len(all) != 1200 || string(all[7].Value) != "new" || !slices.IsSortedFunc(all, func(a, b environment.Entry) int { return strings.Compare(a.Key, b.Key) }) {
			t.Fatalf("List: %d entries, %v", len(all), err)
		}
		if err := kv.Delete(ctx, "p/0007", all[7].Revision); err != nil {
			t.Fatal(err)
		}
		keys, err := kv.Keys(ctx, "p/", 700)
		if err != nil || len(keys) != 700 || keys[7] != "p/0008" {
			t.Fatalf("Keys: %d, %v", len(keys), err)
		}
		if keys, err = kv.Keys(ctx, "q/", 10); err != nil || len(keys) != 0 {
			t.Fatalf("Keys of nothing: %v, %v", keys, err)
		}
	})
}

func TestVersions(t *testing.T) {
	each(t, func(t *testing.T, kv environment.KV) {
		ctx := t.Context()
		now := time.Unix(1000, 0)
		c := environment.New(kv, func() time.Time { now = now.Add(time.Second); return now })
		for n, want := range []string{"v1", "v2", "v3"} {
			l, reused, err := c.Publish(ctx, layerOf(base, "python:3.12", n))
			if err != nil || reused || l.Version != want || l.CreatedAt.AsTime() != now.UTC() {
				t.Fatalf("Publish %d = %v, %v, %v", n, l, reused, err)
			}
		}
		if l, reused, err := c.Publish(ctx, layerOf(base, "python:3.12", 1)); err != nil || !reused || l.Version != "v2" {
			t.Errorf("the same content again: %v, %v, %v", l, reused, err)
		}
		if l := publish(t, c, layerOf(workspace, "python:3.12", 1)); l.Version != "v1" {
			t.Errorf("another kind is counted apart: %v", l)
		}
		if gone, err := c.Delete(ctx, base, "python:3.12", "v3", false); err != nil || len(gone) != 1 || gone[0].Digest != digest(2) {
			t.Errorf("Delete = %v, %v", gone, err)
		}
		if l := publish(t, c, layerOf(base, "python:3.12", 9)); l.Version != "v4" {
			t.Errorf("a deleted version was given again: %v", l)
		}
		list, err := c.List(ctx, base, "")
		if err != nil || len(list) != 3 || list[2].Version != "v4" {
			t.Errorf("List = %v, %v", list, err)
		}
		if list, err = c.List(ctx, 0, ""); err != nil || len(list) != 4 {
			t.Errorf("List of all kinds = %v, %v", list, err)
		}
		if list, err = c.List(ctx, 0, "python"); err != nil || len(list) != 0 {
			t.Errorf("List of a part of a name = %v, %v", list, err)
		}
		if gone, err := c.Delete(ctx, 0, "python:3.12", "", false); err != nil || len(gone) != 3 {
			t.Errorf("Delete all = %v, %v", gone, err)
		}
		if l := publish(t, c, layerOf(base, "python:3.12", 9)); l.Version != "v5" {
			t.Errorf("after all were deleted: %v", l)
		}
	})
}

// Publishers of the same and of different contents, and deleters, at once: versions are unique, equal contents
// share one, and every version is found by its digest.
func TestConcurrentPublishers(t *testing.T) {
	each(t, func(t *testing.T, kv environment.KV) {
		ctx := t.Context()
		var wg sync.WaitGroup
		var mu sync.Mutex
		versions := map[string]string{} // by digest
		for w := range 8 {
			c := environment.New(kv, time.Now)
			wg.Go(func() {
				for n := range 10 {
					l, _, err := c.Publish(ctx, layerOf(toolkit, "agent", n%5))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if v, ok := versions[l.Digest]; ok && v != l.Version {
						t.Errorf("%s has versions %s and %s", l.Digest, v, l.Version)
					}
					versions[l.Digest] = l.Version
					mu.Unlock()
					if w == 0 {
						publish(t, c, layerOf(toolkit, "other", 100+n))
						if _, err := c.Delete(ctx, toolkit, "other", "", false); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		list, err := environment.New(kv, time.Now).List(ctx, toolkit, "agent")
		if err != nil || len(list) != 5 {
			t.Fatalf("List = %v, %v", list, err)
		}
	})
}

// A version that is published while the last one like it is deleted must be found by its digest.
func TestPublishBesideDelete(t *testing.T) {
	kv := environment.NewMemory()
	c := environment.New(kv, time.Now)
	for range 300 {
		publish(t, c, layerOf(base, "b", 1))
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Delete(t.Context(), base, "b", "", false); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() { publish(t, c, layerOf(base, "b", 1)) })
		wg.Wait()
		list, err := c.List(t.Context(), base, "b")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Resolve(t.Context(), &dsecv1.Environment{Base: digest(1)}); (err == nil) != (len(list) > 0) {
			t.Fatalf("%d versions, but by digest: %v", len(list), err)
		}
	}
}

func TestResolve(t *testing.T) {
	each(t, func(t *testing.T, kv environment.KV) {
		ctx := t.Context()
		now := time.Unix(1000, 0)
		c := environment.New(kv, func() time.Time { now = now.Add(time.Second); return now })
		source := "docker://index.docker.io/library/python:3.12"
		for n := range 2 {
			l := layerOf(base, "python:3.12", n)
			l.Source = source
			l.Config = &dsecv1.ImageConfig{Env: []string{"PATH=/bin", "LANG=C", "bad"}, User: "root", Workdir: "/", Entrypoint: []string{"e"}, Cmd: []string{"c"}}
			publish(t, c, l)
		}
		copied := layerOf(base, "team/copy", 1)
		copied.Source = source
		publish(t, c, copied)
		publish(t, c, layerOf(workspace, "django", 10))
		l := layerOf(toolkit, "agent", 20)
		l.Config = &dsecv1.ImageConfig{Env: []string{"PATH=/opt/bin:/bin", "A=1"}, Workdir: "/work"}
		publish(t, c, l)
		publish(t, c, layerOf(toolkit, "tools", 30))

		cases := map[string]struct {
			env  *dsecv1.Environment
			want string
		}{
			"newest":           {&dsecv1.Environment{Base: "python:3.12"}, "base python:3.12@v2"},
			"version":          {&dsecv1.Environment{Base: "python:3.12@v1"}, "base python:3.12@v1"},
			"digest":           {&dsecv1.Environment{Base: digest(0)}, "base python:3.12@v1"},
			"image by name":    {&dsecv1.Environment{Image: "python:3.12"}, "base python:3.12@v2"},
			"image by source":  {&dsecv1.Environment{Image: "docker.io/library/python:3.12"}, "base team/copy@v1"},
			"image by URL":     {&dsecv1.Environment{Image: source}, "base team/copy@v1"},
			"image by version": {&dsecv1.Environment{Image: "python:3.12@v1"}, "base python:3.12@v1"},
			"stack": {&dsecv1.Environment{Base: "python:3.12", Workspace: "django", Toolkits: []string{"tools@v1", "agent"}},
				"base python:3.12@v2, workspace django@v1, toolkit tools@v1, toolkit agent@v1"},
		}
		for name, tc := range cases {
			env, err := c.Resolve(ctx, tc.env)
			var got []string
			for _, l := range env.GetLayers() {
				got = append(got, fmt.Sprintf("%s %s@%s", l.Kind, l.Name, l.Version))
			}
			if s := strings.Join(got, ", "); err != nil || s != tc.want {
				t.Errorf("%s: %s, %v; want %s", name, s, err, tc.want)
			}
		}
		env, err := c.Resolve(ctx, cases["stack"].env)
		cfg := env.GetConfig()
		if err != nil || !slices.Equal(cfg.Env, []string{"PATH=/opt/bin:/bin", "LANG=C", "A=1"}) || cfg.User != "root" || cfg.Workdir != "/work" || cfg.Entrypoint[0] != "e" {
			t.Errorf("configuration %v, %v", cfg, err)
		}

		bad := map[string]struct {
			env  *dsecv1.Environment
			kind error
			says string
		}{
			"nothing":         {&dsecv1.Environment{}, sandbox.ErrInvalid, "no base"},
			"both":            {&dsecv1.Environment{Base: "a", Image: "b"}, sandbox.ErrInvalid, "set one"},
			"unknown":         {&dsecv1.Environment{Base: "pyton:3.12"}, sandbox.ErrNotFound, "python:3.12"},
			"unknown at all":  {&dsecv1.Environment{Base: "zzz"}, sandbox.ErrNotFound, "dsec image import"},
			"toolkit":         {&dsecv1.Environment{Base: "python:3.12", Toolkits: []string{"agnt"}}, sandbox.ErrNotFound, "agent"},
			"workspace":       {&dsecv1.Environment{Base: "python:3.12", Workspace: "flask"}, sandbox.ErrNotFound, "dsec layer import --workspace"},
			"version":         {&dsecv1.Environment{Base: "python:3.12@v9"}, sandbox.ErrNotFound, "it has v2, v1"},
			"bad version":     {&dsecv1.Environment{Base: "python:3.12@v01"}, sandbox.ErrInvalid, "v1"},
			"bad tag":         {&dsecv1.Environment{Base: "python:3.12@New"}, sandbox.ErrInvalid, "v1"},
			"no such tag":     {&dsecv1.Environment{Base: "python:3.12@latest"}, sandbox.ErrNotFound, "it has v2, v1"},
			"bad name":        {&dsecv1.Environment{Base: "Python"}, sandbox.ErrInvalid, "lower-case"},
			"bad digest":      {&dsecv1.Environment{Base: "b3:xyz"}, sandbox.ErrInvalid, "digest"},
			"unknown digest":  {&dsecv1.Environment{Base: digest(99)}, sandbox.ErrNotFound, digest(99)},
			"other kind":      {&dsecv1.Environment{Base: digest(10)}, sandbox.ErrNotFound, ""},
			"unknown image":   {&dsecv1.Environment{Image: "debian:13"}, sandbox.ErrNotFound, "dsec image import docker://index.docker.io/library/debian:13"},
			"bad image":       {&dsecv1.Environment{Image: "a b"}, sandbox.ErrInvalid, ""},
			"twice":           {&dsecv1.Environment{Base: "python:3.12", Toolkits: []string{"agent", "agent@v1"}}, sandbox.ErrInvalid, "once"},
			"too many layers": {&dsecv1.Environment{Base: "python:3.12", Toolkits: slices.Repeat([]string{"agent"}, 64)}, sandbox.ErrInvalid, "64"},
		}
		for name, tc := range bad {
			_, err := c.Resolve(ctx, tc.env)
			if !errors.Is(err, tc.kind) || !strings.Contains(fmt.Sprint(err), tc.says) {
				t.Errorf("%s: %v; want %v that says %q", name, err, tc.kind, tc.says)
			}
			t.Log(err)
		}
		for name, f := range map[string]func() error{
			"delete unknown": func() error { _, err := c.Delete(ctx, base, "pythn:3.12", "", false); return err },
			"delete version": func() error { _, err := c.Delete(ctx, base, "python:3.12", "v7", false); return err },
		} {
			if err := f(); !errors.Is(err, sandbox.ErrNotFound) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestPublishRefused(t *testing.T) {
	c := environment.New(environment.NewMemory(), time.Now)
	for name, l := range map[string]*dsecv1.Layer{
		"no name":     {Digest: digest(1)},
		"slash":       {Digest: digest(1), Name: "/a"},
		"dotdot":      {Digest: digest(1), Name: "a/../b"},
		"upper case":  {Digest: digest(1), Name: "A"},
		"like digest": {Digest: digest(1), Name: digest(1)},
		"at":          {Digest: digest(1), Name: "a@v1"},
		"long":        {Digest: digest(1), Name: strings.Repeat("a", 129)},
		"no digest":   {Name: "a"},
		"bad kind":    {Digest: digest(1), Name: "a", Kind: 17},
	} {
		if _, _, err := c.Publish(t.Context(), l); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func BenchmarkResolve(b *testing.B) {
	dir := b.TempDir()
	sock := filepath.Join(dir, "s")
	e, err := engine.Start(b.Context(), engine.Options{Dir: filepath.Join(dir, "d"), Socket: sock, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	client, err := engine.Dial("unix://" + sock)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	c := environment.New(environment.NewEtcd(client, "c/"), time.Now)
	for _, l := range []*dsecv1.Layer{layerOf(base, "b", 1), layerOf(workspace, "w", 2), layerOf(toolkit, "t", 3)} {
		if _, _, err := c.Publish(b.Context(), l); err != nil {
			b.Fatal(err)
		}
	}
	env := &dsecv1.Environment{Base: "b", Workspace: "w", Toolkits: []string{"t"}}
	for b.Loop() {
		if _, err := c.Resolve(b.Context(), env); err != nil {
			b.Fatal(err)
		}
	}
}
