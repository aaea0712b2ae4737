package environment_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/environment"
	"github.com/opendsec/dsec/sandbox"
)

// says checks an error's kind and a part of its text.
func says(t *testing.T, what string, err, kind error, part string) {
	t.Helper()
	if !errors.Is(err, kind) || !strings.Contains(fmt.Sprint(err), part) {
		t.Errorf("%s: %v; want %v that says %q", what, err, kind, part)
	}
}

func stack(e *dsecv1.ResolvedEnvironment) string {
	var out []string
	for _, l := range e.GetLayers() {
		out = append(out, l.Name+"@"+l.Version)
	}
	return strings.Join(out, " ")
}

func TestNamedEnvironment(t *testing.T) {
	each(t, func(t *testing.T, kv environment.KV) {
		ctx := t.Context()
		c := environment.New(kv, time.Now)
		l := layerOf(base, "debian", 1)
		l.Config = &dsecv1.ImageConfig{Env: []string{"PATH=/bin", "A=image"}, User: "image", Workdir: "/image"}
		publish(t, c, l)
		publish(t, c, layerOf(workspace, "django", 10))
		publish(t, c, layerOf(toolkit, "agent", 20))
		publish(t, c, layerOf(toolkit, "more", 21))
		e := &dsecv1.NamedEnvironment{Name: "team/django", Stack: &dsecv1.Environment{Base: "debian@v1", Workspace: "django", Toolkits: []string{"agent"}},
			Limits: &dsecv1.Limits{MemoryBytes: 1 << 30}, Env: map[string]string{"A": "env", "B": "b"}, Workdir: "/workspace"}
		if _, err := c.CreateEnvironment(ctx, e, false); err != nil {
			t.Fatal(err)
		}
		_, err := c.CreateEnvironment(ctx, e, false)
		says(t, "a name that is taken", err, sandbox.ErrAlreadyExists, "choose another name, or replace it")
		got, err := c.Resolve(ctx, &dsecv1.Environment{Name: "team/django", Toolkits: []string{"more"}})
		if err != nil || stack(got) != "debian@v1 django@v1 agent@v1 more@v1" {
			t.Fatalf("%s, %v", stack(got), err)
		}
		if cfg := got.Config; !slices.Equal(cfg.Env, []string{"PATH=/bin", "A=env", "B=b"}) || cfg.User != "image" || cfg.Workdir != "/workspace" || got.Limits.MemoryBytes != 1<<30 {
			t.Errorf("%v %v", cfg, got.Limits)
		}

		// What is pinned stays, what is not moves; nothing else changes.
		publish(t, c, layerOf(base, "debian", 2))
		publish(t, c, layerOf(toolkit, "agent", 22))
		if got, err = c.Resolve(ctx, &dsecv1.Environment{Name: "team/django"}); err != nil || stack(got) != "debian@v1 django@v1 agent@v2" {
			t.Errorf("after an upgrade: %s, %v", stack(got), err)
		}
		if got, err = c.Resolve(ctx, &dsecv1.Environment{Name: "team/django", Base: "debian"}); err != nil || stack(got) != "debian@v2 django@v1 agent@v2" {
			t.Errorf("with another base: %s, %v", stack(got), err)
		}

		// What an environment means cannot be deleted; what it does not mean can.
		for _, d := range []struct {
			kind          dsecv1.LayerKind
			name, version string
			used          bool
		}{{base, "debian", "v1", true}, {base, "debian", "", true}, {base, "debian", "v2", false}, {toolkit, "agent", "v1", false}, {toolkit, "agent", "v2", true}, {workspace, "django", "", true}} {
			_, err := c.Delete(ctx, d.kind, d.name, d.version, false)
			if d.used {
				says(t, "delete "+d.name+"@"+d.version, err, sandbox.ErrFailedPrecondition, "in use by environment team/django")
			} else if err != nil {
				t.Errorf("delete %s@%s: %v", d.name, d.version, err)
			}
		}
		_, users, err := c.Get(ctx, workspace, "django")
		if err != nil || !slices.Equal(users, []string{"team/django"}) {
			t.Errorf("used by %v, %v", users, err)
		}
		if _, err := c.Delete(ctx, workspace, "django", "", true); err != nil {
			t.Error(err)
		}
		_, err = c.Resolve(ctx, &dsecv1.Environment{Name: "team/django"})
		says(t, "with a layer that was forced away", err, sandbox.ErrNotFound, `environment team/django: workspace "django"`)

		if _, err := c.DeleteEnvironment(ctx, "team/django"); err != nil {
			t.Error(err)
		}
		_, err = c.DeleteEnvironment(ctx, "team/django")
		says(t, "deleted twice", err, sandbox.ErrNotFound, "dsec env create")
		_, err = c.Resolve(ctx, &dsecv1.Environment{Name: "Bad"})
		says(t, "bad name", err, sandbox.ErrInvalid, "lower-case")

		for name, e := range map[string]*dsecv1.NamedEnvironment{
			"no base":   {Name: "x", Stack: &dsecv1.Environment{Workspace: "django"}},
			"nested":    {Name: "x", Stack: &dsecv1.Environment{Name: "y"}},
			"digests":   {Name: "x", Stack: &dsecv1.Environment{Layers: []string{digest(1)}}},
			"variable":  {Name: "x", Stack: &dsecv1.Environment{Base: "debian"}, Env: map[string]string{"A=B": "c"}},
			"directory": {Name: "x", Stack: &dsecv1.Environment{Base: "debian"}, Workdir: "w"},
			"limit":     {Name: "x", Stack: &dsecv1.Environment{Base: "debian"}, Limits: &dsecv1.Limits{Pids: -1}},
			"no name":   {Stack: &dsecv1.Environment{Base: "debian"}},
		} {
			_, err := c.CreateEnvironment(ctx, e, false)
			says(t, name, err, sandbox.ErrInvalid, "")
		}
	})
}

func TestTags(t *testing.T) {
	each(t, func(t *testing.T, kv environment.KV) {
		ctx := t.Context()
		c := environment.New(kv, time.Now)
		publish(t, c, layerOf(base, "b", 1))
		publish(t, c, layerOf(base, "b", 2))
		tag := func(ref, tag string) {
			t.Helper()
			if _, err := c.Tag(ctx, base, ref, tag, false); err != nil {
				t.Fatal(err)
			}
		}
		at := func(ref, want string) {
			t.Helper()
			got, err := c.Resolve(ctx, &dsecv1.Environment{Base: ref})
			if err != nil || stack(got) != want {
				t.Errorf("%s is %s, %v; want %s", ref, stack(got), err, want)
			}
		}
		tag("b@v1", "stable")
		at("b@stable", "b@v1")
		tag("b", "stable")
		at("b@stable", "b@v2")
		tag("b@stable", "other")
		at("b@other", "b@v2")
		list, err := c.List(ctx, base, "b")
		if err != nil || len(list) != 2 || !slices.Equal(list[1].Tags, []string{"other", "stable"}) || len(list[0].Tags) > 0 {
			t.Errorf("%v, %v", list, err)
		}
		if _, err := c.Tag(ctx, base, "b", "other", true); err != nil {
			t.Error(err)
		}
		_, err = c.Tag(ctx, base, "b", "other", true)
		says(t, "removed twice", err, sandbox.ErrNotFound, "no tag other")
		if _, err := c.CreateEnvironment(ctx, &dsecv1.NamedEnvironment{Name: "e", Stack: &dsecv1.Environment{Base: "b@stable"}}, false); err != nil {
			t.Fatal(err)
		}
		_, err = c.Delete(ctx, base, "b", "v2", false)
		says(t, "a tagged version that an environment means", err, sandbox.ErrFailedPrecondition, "environment e")
		tag("b@v1", "stable")
		if _, err := c.Delete(ctx, base, "b", "v2", false); err != nil {
			t.Error(err)
		}
		publish(t, c, layerOf(base, "b", 3))
		if _, err := c.Delete(ctx, base, "b", "v1", true); err != nil {
			t.Error(err)
		}
		_, err = c.Resolve(ctx, &dsecv1.Environment{Base: "b@stable"})
		says(t, "a tag of a deleted version", err, sandbox.ErrNotFound, "it has v3")
		for _, bad := range []string{"", "v1", "v12", "A", "a b", ".a", strings.Repeat("a", 65)} {
			_, err := c.Tag(ctx, base, "b", bad, false)
			says(t, fmt.Sprintf("tag %q", bad), err, sandbox.ErrInvalid, "")
		}
		_, err = c.Tag(ctx, base, digest(3), "x", false)
		says(t, "tag of a digest", err, sandbox.ErrInvalid, "name a version")
	})
}

// A version may be a stack; of equal layers the topmost counts, and what lies below keeps its content.
func TestStackedVersions(t *testing.T) {
	each(t, func(t *testing.T, kv environment.KV) {
		ctx := t.Context()
		c := environment.New(kv, time.Now)
		l := layerOf(base, "built", 3)
		l.Below = []string{digest(1), digest(2)}
		publish(t, c, l)
		l = layerOf(toolkit, "tool", 4)
		l.Below = []string{digest(2)}
		l.OnStart = &dsecv1.OnStart{Argv: []string{"/opt/start"}}
		publish(t, c, l)
		got, err := c.Resolve(ctx, &dsecv1.Environment{Base: "built", Toolkits: []string{"tool"}})
		var digests []string
		for _, l := range got.GetLayers() {
			digests = append(digests, l.Digest)
		}
		if err != nil || !slices.Equal(digests, []string{digest(1), digest(3), digest(2), digest(4)}) || got.Layers[3].OnStart.GetArgv()[0] != "/opt/start" {
			t.Errorf("%v, %v", digests, err)
		}
		if _, err := c.Resolve(ctx, &dsecv1.Environment{Layers: []string{digest(1), digest(3)}}); err != nil {
			t.Error(err)
		}
		_, err = c.Resolve(ctx, &dsecv1.Environment{Layers: []string{digest(9)}})
		says(t, "unknown digest", err, sandbox.ErrNotFound, digest(9))
		_, err = c.Resolve(ctx, &dsecv1.Environment{Layers: []string{digest(1)}, Base: "built"})
		says(t, "both", err, sandbox.ErrInvalid, "set one")
		big := layerOf(base, "big", 50)
		for n := range 64 {
			big.Below = append(big.Below, digest(100+n))
		}
		publish(t, c, big)
		_, err = c.Resolve(ctx, &dsecv1.Environment{Base: "big"})
		says(t, "65 layers", err, sandbox.ErrInvalid, "dsec layer collapse")
		if _, err := c.Delete(ctx, base, "built", "", false); err != nil {
			t.Fatal(err)
		}
		collected(t, c, digest(1), digest(3)) // the toolkit has the other
	})
}

func collected(t *testing.T, c *environment.Catalogue, want ...string) {
	t.Helper()
	var removed []string
	if err := c.Collect(t.Context(), func(_ context.Context, d string) error { removed = append(removed, d); return nil }); err != nil {
		t.Error(err)
	}
	if slices.Sort(removed); !slices.Equal(removed, want) {
		t.Errorf("collected %v, want %v", removed, want)
	}
}

func TestSteps(t *testing.T) {
	each(t, func(t *testing.T, kv environment.KV) {
		ctx := t.Context()
		now := time.Unix(1_700_000_000, 0)
		c := environment.New(kv, func() time.Time { return now })
		for n, key := range []string{"aa", "bb"} {
			if err := c.PutStep(ctx, key, &dsecv1.Layer{Digest: digest(n + 1), Config: &dsecv1.ImageConfig{User: key}}); err != nil {
				t.Fatal(err)
			}
		}
		if l, err := c.Step(ctx, "bb"); err != nil || l.Digest != digest(2) || l.Config.User != "bb" {
			t.Errorf("%v, %v", l, err)
		}
		_, err := c.Step(ctx, "cc")
		says(t, "unknown step", err, sandbox.ErrNotFound, "cc")
		says(t, "bad key", c.PutStep(ctx, "A/b", &dsecv1.Layer{Digest: digest(1)}), sandbox.ErrInvalid, "key")
		if _, err := c.Resolve(ctx, &dsecv1.Environment{Layers: []string{digest(1)}}); err != nil {
			t.Error(err)
		}
		now = now.Add(environment.StepAge - time.Hour)
		if _, err := c.Step(ctx, "aa"); err != nil {
			t.Fatal(err)
		}
		now = now.Add(2 * time.Hour)
		if n, err := c.ForgetSteps(ctx, environment.StepAge); n != 1 || err != nil {
			t.Errorf("forgot %d, %v", n, err)
		}
		collected(t, c, digest(2))
		if err := c.PutStep(ctx, "aa", &dsecv1.Layer{Digest: digest(5)}); err != nil { // made again, with another result
			t.Fatal(err)
		}
		collected(t, c, digest(1))
		if n, err := c.ForgetStepsOf(ctx, digest(6)); n != 0 || err != nil {
			t.Errorf("forgot %d, %v", n, err)
		}
		if n, err := c.ForgetStepsOf(ctx, digest(5)); n != 1 || err != nil {
			t.Errorf("forgot %d, %v", n, err)
		}
		if _, err := c.Step(ctx, "aa"); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("a step whose layer is damaged: %v", err)
		}
	})
}

// Upgrading a toolkit that a thousand workspaces' environments stack is one new layer, whatever stacks it.
func TestToolkitUpgradeTouchesNothingElse(t *testing.T) {
	const workspaces = 1000
	ctx := t.Context()
	kv := environment.NewMemory()
	c := environment.New(kv, time.Now)
	publish(t, c, layerOf(base, "b", 1))
	publish(t, c, layerOf(toolkit, "agent", 2))
	for n := range workspaces {
		publish(t, c, layerOf(workspace, fmt.Sprintf("w%d", n), 10+n))
		e := &dsecv1.NamedEnvironment{Name: fmt.Sprintf("e%d", n), Stack: &dsecv1.Environment{Base: "b", Workspace: fmt.Sprintf("w%d", n), Toolkits: []string{"agent"}}}
		if _, err := c.CreateEnvironment(ctx, e, false); err != nil {
			t.Fatal(err)
		}
	}
	snapshot := func() (map[string]int64, map[string]bool) {
		entries, err := kv.List(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		named, err := c.Named(ctx)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]int64{}
		for _, e := range entries {
			out[e.Key] = e.Revision
		}
		return out, named
	}
	before, layersBefore := snapshot()
	publish(t, c, layerOf(toolkit, "agent", 3))
	after, layersAfter := snapshot()
	if n := len(layersAfter) - len(layersBefore); n != 1 {
		t.Errorf("layers rebuilt: %d, want 1", n)
	}
	var changed []string
	for key, revision := range after {
		if before[key] != revision {
			changed = append(changed, key)
		}
	}
	if slices.Sort(changed); !slices.Equal(changed, []string{"digest/toolkit/" + digest(3), "name/toolkit/agent"}) {
		t.Errorf("changed in the catalogue: %v", changed)
	}
	for n := range workspaces {
		got, err := c.Resolve(ctx, &dsecv1.Environment{Name: fmt.Sprintf("e%d", n)})
		if want := fmt.Sprintf("b@v1 w%d@v1 agent@v2", n); err != nil || stack(got) != want {
			t.Fatalf("%s, %v; want %s", stack(got), err, want)
		}
	}
}
