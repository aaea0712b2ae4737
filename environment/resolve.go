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
	digest  string
}

// parse reads NAME, NAME@V or a digest.
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
	if at {
		if _, err := parseVersion(version); err != nil {
			return err
		}
	}
	r.name, r.version = name, version
	return nil
}

// Resolve turns an environment into its layers, bottom to top (base, workspace, toolkits), and merges what their
// images say about running them: variables bottom to top, user, workdir and command from the topmost that has
// them. Errors: sandbox.ErrInvalid, ErrNotFound (with what there is), ErrUnavailable.
func (c *Catalogue) Resolve(ctx context.Context, env *dsecv1.Environment) ([]*dsecv1.ResolvedLayer, *dsecv1.ImageConfig, error) {
	refs, err := references(env)
	if err != nil {
		return nil, nil, err
	}
	// All names in one round trip; what remains (digests, sources) one by one.
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
		return nil, nil, err
	}
	layers := make([]*dsecv1.Layer, len(refs))
	for n, r := range refs {
		rec := &record{}
		if at[n] >= 0 {
			if rec, err = decodeRecord(entries[at[n]]); err != nil {
				return nil, nil, err
			}
		}
		if layers[n], err = c.resolve(ctx, r, rec); err != nil {
			return nil, nil, err
		}
		for _, below := range layers[:n] {
			if below.Digest == layers[n].Digest {
				return nil, nil, fmt.Errorf("environment: %w: %s %s and %s %s are the same layer; name it once", sandbox.ErrInvalid,
					kindWord(below.Kind), below.Name, kindWord(layers[n].Kind), layers[n].Name)
			}
		}
	}
	out := make([]*dsecv1.ResolvedLayer, len(layers))
	for n, l := range layers {
		out[n] = &dsecv1.ResolvedLayer{Digest: l.Digest, Kind: kindWord(l.Kind), Name: l.Name, Version: l.Version}
	}
	return out, merge(layers), nil
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
	if l := rec.newest(func(l *dsecv1.Layer) bool { return r.version == "" || l.Version == r.version }); l != nil {
		return l, nil
	}
	if !r.image {
		return nil, c.unknown(ctx, r.kind, r.name, r.version, rec)
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
	return nil, c.unknown(ctx, r.kind, r.name, r.version, rec)
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

// merge lays the configurations over one another, bottom to top.
func merge(layers []*dsecv1.Layer) *dsecv1.ImageConfig {
	out := &dsecv1.ImageConfig{}
	for _, l := range layers {
		c := l.GetConfig()
		for _, v := range c.GetEnv() {
			name, _, _ := strings.Cut(v, "=")
			if n := slices.IndexFunc(out.Env, func(o string) bool { return strings.HasPrefix(o, name+"=") }); n >= 0 {
				out.Env[n] = v
			} else if name != "" && strings.Contains(v, "=") {
				out.Env = append(out.Env, v)
			}
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
