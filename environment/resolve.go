package environment

import (
	"context"
	"fmt"
	"slices"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/oci"
	"github.com/opendsec/dsec/sandbox"
)

// MaxLayers bounds a stack.
const MaxLayers = 64

// reference is a part of an environment, as it was named.
type reference struct {
	kind    dsecv1.LayerKind
	text    string
	image   bool // may be the source of a base
	name    string
	version string // empty = the newest
	tag     string
	digest  string
}

// parse reads NAME, NAME@V, NAME@TAG or a digest.
func (r *reference) parse() error {
	if strings.HasPrefix(r.text, "b3:") {
		d, err := layer.ParseDigest(r.text)
		r.digest = string(d)
		return err
	}
	name, version, at := strings.Cut(r.text, "@")
	if err := layer.CheckName(name); err != nil {
		return err
	}
	r.name = name
	switch {
	case !at:
	case looksLikeVersion(version):
		r.version = version
		_, err := parseVersion(version)
		return err
	default:
		r.tag = version
		return checkTag(version)
	}
	return nil
}

// Resolve turns an environment into its layers, bottom to top (base, workspace, toolkits), and merges what their
// images say about running them: variables bottom to top, user, workdir and command from the topmost that has
// them; above that comes what a named environment says. Errors: sandbox.ErrInvalid, ErrNotFound (with what there is),
// ErrUnavailable.
func (c *Catalogue) Resolve(ctx context.Context, env *dsecv1.Environment) (*dsecv1.ResolvedEnvironment, error) {
	if len(env.GetLayers()) > 0 {
		return c.resolveDigests(ctx, env)
	}
	var named *dsecv1.NamedEnvironment
	if env.GetName() != "" {
		var err error
		if named, err = c.Environment(ctx, env.GetName()); err != nil {
			return nil, err
		}
		env = over(named.GetStack(), env)
	}
	out, err := c.resolveStack(ctx, env)
	if err != nil {
		if named != nil {
			err = fmt.Errorf("environment %s: %w", named.GetName(), err)
		}
		return nil, err
	}
	if named != nil {
		applyDefaults(out, named)
	}
	return out, nil
}

// over lays what was asked for besides a named environment over its stack.
func over(stack, asked *dsecv1.Environment) *dsecv1.Environment {
	out := &dsecv1.Environment{Image: stack.GetImage(), Base: stack.GetBase(), Workspace: stack.GetWorkspace()}
	if asked.GetBase() != "" || asked.GetImage() != "" {
		out.Image, out.Base = asked.GetImage(), asked.GetBase()
	}
	if asked.GetWorkspace() != "" {
		out.Workspace = asked.GetWorkspace()
	}
	out.Toolkits = slices.Concat(stack.GetToolkits(), asked.GetToolkits())
	return out
}

func (c *Catalogue) resolveStack(ctx context.Context, env *dsecv1.Environment) (*dsecv1.ResolvedEnvironment, error) {
	refs, err := references(env)
	if err != nil {
		return nil, err
	}
	layers, err := c.lookUp(ctx, refs)
	if err != nil {
		return nil, err
	}
	out := &dsecv1.ResolvedEnvironment{Config: merge(layers)}
	for n, l := range layers {
		for _, below := range layers[:n] {
			if below.Digest == l.Digest {
				return nil, fmt.Errorf("environment: %w: %s %s and %s %s are the same layer; name it once", sandbox.ErrInvalid,
					kindWord(below.Kind), below.Name, kindWord(l.Kind), l.Name)
			}
		}
		for _, d := range l.Below {
			out.Layers = append(out.Layers, &dsecv1.ResolvedLayer{Digest: d, Kind: kindWord(l.Kind), Name: l.Name, Version: l.Version})
		}
		out.Layers = append(out.Layers, &dsecv1.ResolvedLayer{Digest: l.Digest, Kind: kindWord(l.Kind), Name: l.Name, Version: l.Version, OnStart: l.OnStart})
	}
	out.Layers = topmost(out.Layers, func(l *dsecv1.ResolvedLayer) string { return l.Digest })
	if len(out.Layers) > MaxLayers {
		return nil, fmt.Errorf("environment: %w: %d layers are more than %d; make some into one with: dsec layer collapse", sandbox.ErrInvalid, len(out.Layers), MaxLayers)
	}
	return out, nil
}

// topmost leaves of equal layers the one on top: it hides, and shows, all that the others do.
func topmost[T any](stack []T, digest func(T) string) []T {
	seen := map[string]bool{}
	var out []T
	for _, l := range slices.Backward(stack) {
		if !seen[digest(l)] {
			seen[digest(l)] = true
			out = append(out, l)
		}
	}
	slices.Reverse(out)
	return out
}

// resolveDigests takes layers as they are named.
func (c *Catalogue) resolveDigests(ctx context.Context, env *dsecv1.Environment) (*dsecv1.ResolvedEnvironment, error) {
	if env.GetName() != "" || env.GetBase() != "" || env.GetImage() != "" || env.GetWorkspace() != "" || len(env.GetToolkits()) > 0 {
		return nil, fmt.Errorf("environment: %w: it names layers by digest and something else besides; set one", sandbox.ErrInvalid)
	}
	out := &dsecv1.ResolvedEnvironment{Config: &dsecv1.ImageConfig{}}
	for _, d := range topmost(env.GetLayers(), func(d string) string { return d }) {
		if err := c.known(ctx, d); err != nil {
			return nil, fmt.Errorf("environment: %w", err)
		}
		out.Layers = append(out.Layers, &dsecv1.ResolvedLayer{Digest: d, Kind: kindWord(dsecv1.LayerKind_LAYER_KIND_BASE)})
	}
	if len(out.Layers) > MaxLayers {
		return nil, fmt.Errorf("environment: %w: %d layers are more than %d", sandbox.ErrInvalid, len(out.Layers), MaxLayers)
	}
	return out, nil
}

// lookUp finds what references mean: all names in one round trip, what remains (digests, sources) one by one.
func (c *Catalogue) lookUp(ctx context.Context, refs []*reference) ([]*dsecv1.Layer, error) {
	var keys []string
	at := make([]int, len(refs))
	for n, r := range refs {
		at[n] = -1
		if r.name != "" {
			at[n] = len(keys)
			keys = append(keys, nameKey(r.kind, r.name))
		}
	}
	entries, err := c.kv.Get(ctx, keys...)
	if err != nil {
		return nil, err
	}
	layers := make([]*dsecv1.Layer, len(refs))
	for n, r := range refs {
		rec := &record{}
		if at[n] >= 0 {
			if rec, err = decodeRecord(entries[at[n]]); err != nil {
				return nil, err
			}
		}
		if layers[n], err = c.resolve(ctx, r, rec); err != nil {
			return nil, err
		}
	}
	return layers, nil
}

// references lists the parts of an environment, bottom to top.
func references(env *dsecv1.Environment) ([]*reference, error) {
	base := &reference{kind: dsecv1.LayerKind_LAYER_KIND_BASE, text: env.GetBase()}
	switch {
	case env.GetBase() != "" && env.GetImage() != "":
		return nil, fmt.Errorf("environment: %w: it names a base and an image; image is another word for base, set one", sandbox.ErrInvalid)
	case env.GetImage() != "":
		base.text, base.image = env.GetImage(), true
	case env.GetBase() == "":
		return nil, fmt.Errorf("environment: %w: it names no base; set base or image", sandbox.ErrInvalid)
	}
	refs := []*reference{base}
	if env.GetWorkspace() != "" {
		refs = append(refs, &reference{kind: dsecv1.LayerKind_LAYER_KIND_WORKSPACE, text: env.GetWorkspace()})
	}
	for _, t := range env.GetToolkits() {
		refs = append(refs, &reference{kind: dsecv1.LayerKind_LAYER_KIND_TOOLKIT, text: t})
	}
	if len(refs) > MaxLayers {
		return nil, fmt.Errorf("environment: %w: %d layers are more than %d", sandbox.ErrInvalid, len(refs), MaxLayers)
	}
	for _, r := range refs {
		// An image that cannot be a name can still be a source.
		if err := r.parse(); err != nil && !r.image {
			return nil, fmt.Errorf("environment: %s: %w", kindWord(r.kind), err)
		}
	}
	return refs, nil
}

// resolve finds the layer that a reference means; rec is the record of its name, if it has one.
func (c *Catalogue) resolve(ctx context.Context, r *reference, rec *record) (*dsecv1.Layer, error) {
	if r.digest != "" {
		l, err := c.indexed(ctx, r.kind, digestKey(r.kind, r.digest), func(l *dsecv1.Layer) bool { return l.Digest == r.digest })
		if err == nil && l == nil {
			err = fmt.Errorf("%s %s: %w %s", kindWord(r.kind), r.digest, sandbox.ErrNotFound, howTo(r.kind))
		}
		return l, err
	}
	version := r.version
	if r.tag != "" {
		if n, ok := rec.Tags[r.tag]; ok {
			version = formatVersion(n)
		} else {
			version = r.tag // there is none
		}
	}
	if l := rec.newest(func(l *dsecv1.Layer) bool { return version == "" || l.Version == version }); l != nil {
		return l, nil
	}
	if !r.image {
		return nil, c.unknown(ctx, r.kind, r.name, version, rec)
	}
	source, err := oci.Canonical(r.text)
	if err != nil {
		return nil, fmt.Errorf("environment: %w", err)
	}
	l, err := c.indexed(ctx, r.kind, sourceKey(source), func(l *dsecv1.Layer) bool { return l.Source == source })
	if err != nil || l != nil {
		return l, err
	}
	if r.name == "" || len(rec.Versions) == 0 {
		return nil, fmt.Errorf("%w (import it with: dsec image import %s)", c.unknownImage(ctx, r), source)
	}
	return nil, c.unknown(ctx, r.kind, r.name, version, rec)
}

func (c *Catalogue) unknownImage(ctx context.Context, r *reference) error {
	hint := ""
	if near := c.near(ctx, r.kind, strings.TrimPrefix(r.text, imageScheme)); len(near) > 0 {
		hint = "; is it one of " + strings.Join(near, ", ") + "?"
	}
	return fmt.Errorf("image %.200q: %w, neither as the name of a base nor as what one was imported from%s", r.text, sandbox.ErrNotFound, hint)
}

// indexed returns the layer published last among those that an index leads to and that fit; nil = none.
func (c *Catalogue) indexed(ctx context.Context, kind dsecv1.LayerKind, key string, fits func(*dsecv1.Layer) bool) (*dsecv1.Layer, error) {
	entries, err := c.kv.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	names, err := decodeIndex(entries[0])
	if err != nil || len(names) == 0 {
		return nil, err
	}
	keys := make([]string, len(names))
	for n, name := range names {
		keys[n] = nameKey(kind, name)
	}
	if entries, err = c.kv.Get(ctx, keys...); err != nil {
		return nil, err
	}
	var best *dsecv1.Layer
	for _, e := range entries {
		r, err := decodeRecord(e)
		if err != nil {
			return nil, err
		}
		l := r.newest(fits)
		if l != nil && (best == nil || l.CreatedAt.AsTime().After(best.CreatedAt.AsTime())) {
			best = l
		}
	}
	return best, nil
}

// setVariable puts NAME=VALUE in the place of another value of it, or at the end.
func setVariable(env []string, v string) []string {
	name, _, ok := strings.Cut(v, "=")
	if n := slices.IndexFunc(env, func(o string) bool { return strings.HasPrefix(o, name+"=") }); n >= 0 {
		env[n] = v
	} else if ok && name != "" {
		env = append(env, v)
	}
	return env
}

// merge lays the configurations over one another, bottom to top.
func merge(layers []*dsecv1.Layer) *dsecv1.ImageConfig {
	out := &dsecv1.ImageConfig{}
	for _, l := range layers {
		c := l.GetConfig()
		for _, v := range c.GetEnv() {
			out.Env = setVariable(out.Env, v)
		}
		if c.GetUser() != "" {
			out.User = c.GetUser()
		}
		if c.GetWorkdir() != "" {
			out.Workdir = c.GetWorkdir()
		}
		if len(c.GetEntrypoint())+len(c.GetCmd()) > 0 {
			out.Entrypoint, out.Cmd = c.GetEntrypoint(), c.GetCmd()
		}
	}
	return out
}
