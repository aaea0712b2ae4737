package environment

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/oci"
	"github.com/opendsec/dsec/sandbox"
)

const envPrefix = "env/"

// CreateEnvironment keeps a named environment whose layers are there. Errors: sandbox.ErrInvalid, ErrNotFound,
// ErrAlreadyExists when the name is taken and replace is not set.
func (c *Catalogue) CreateEnvironment(ctx context.Context, e *dsecv1.NamedEnvironment, replace bool) (*dsecv1.NamedEnvironment, error) {
	if err := layer.CheckName(e.GetName()); err != nil {
		return nil, fmt.Errorf("environment: %w", err)
	}
	if err := checkDefaults(e); err != nil {
		return nil, fmt.Errorf("environment %s: %w", e.GetName(), err)
	}
	if _, err := c.resolveStack(ctx, e.GetStack()); err != nil {
		return nil, fmt.Errorf("environment %s: %w", e.GetName(), err)
	}
	e = proto.Clone(e).(*dsecv1.NamedEnvironment)
	var value, before []byte
	err := change(ctx, c.kv, envPrefix+e.Name, func(old Entry) ([]byte, bool, error) {
		e.UpdatedAt = timestamppb.New(c.now())
		e.CreatedAt = e.UpdatedAt
		before = old.Value
		if old.Revision != 0 {
			if !replace {
				return nil, false, fmt.Errorf("environment %s: %w; choose another name, or replace it", e.Name, sandbox.ErrAlreadyExists)
			}
			was, err := decodeEnvironment(old)
			if err != nil {
				return nil, false, err
			}
			e.CreatedAt = was.CreatedAt
		}
		b, err := protojson.Marshal(e)
		if err == nil && len(b) > maxRecord {
			err = fmt.Errorf("environment %s: %w: it is larger than %d bytes", e.Name, sandbox.ErrInvalid, maxRecord)
		}
		value = b
		return b, false, err
	})
	if err == nil {
		err = c.confirm(ctx, e, value, before)
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

func checkDefaults(e *dsecv1.NamedEnvironment) error {
	if s := e.GetStack(); s.GetName() != "" || len(s.GetLayers()) > 0 {
		return fmt.Errorf("%w: its stack is made of a base, a workspace and toolkits, not of an environment or of digests", sandbox.ErrInvalid)
	}
	for name, value := range e.GetEnv() {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") || !utf8.ValidString(name) {
			return fmt.Errorf("%w: environment variable %.64q", sandbox.ErrInvalid, name)
		}
	}
	if d := e.GetWorkdir(); d != "" && !strings.HasPrefix(d, "/") {
		return fmt.Errorf("%w: workdir %.64q: want an absolute path", sandbox.ErrInvalid, d)
	}
	l := e.GetLimits()
	for name, v := range map[string]int64{"memory_bytes": l.GetMemoryBytes(), "cpu_millis": l.GetCpuMillis(), "pids": l.GetPids(), "disk_bytes": l.GetDiskBytes(),
		"shm_bytes": l.GetShmBytes(), "io_read_bps": l.GetIoReadBps(), "io_write_bps": l.GetIoWriteBps()} {
		if v < 0 {
			return fmt.Errorf("%w: limits.%s is %d: want 0 or more", sandbox.ErrInvalid, name, v)
		}
	}
	return nil
}

func decodeEnvironment(e Entry) (*dsecv1.NamedEnvironment, error) {
	out := &dsecv1.NamedEnvironment{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(e.Value, out); err != nil {
		return nil, fmt.Errorf("catalogue entry %s: %w: %w", e.Key, sandbox.ErrUnavailable, err)
	}
	return out, nil
}

// Environment returns a named environment. Errors: sandbox.ErrInvalid, ErrNotFound.
func (c *Catalogue) Environment(ctx context.Context, name string) (*dsecv1.NamedEnvironment, error) {
	if err := layer.CheckName(name); err != nil {
		return nil, fmt.Errorf("environment: %w", err)
	}
	entries, err := c.kv.Get(ctx, envPrefix+name)
	if err != nil {
		return nil, err
	}
	if entries[0].Revision == 0 {
		return nil, c.unknownEnvironment(ctx, name)
	}
	return decodeEnvironment(entries[0])
}

func (c *Catalogue) unknownEnvironment(ctx context.Context, name string) error {
	hint := ""
	if keys, err := c.kv.Keys(ctx, envPrefix, maxOffered); err == nil && len(keys) > 0 {
		for n := range keys {
			keys[n] = strings.TrimPrefix(keys[n], envPrefix)
		}
		hint = "; there are " + strings.Join(keys, ", ")
	}
	return fmt.Errorf("environment %s: %w%s (make one with: dsec env create)", name, sandbox.ErrNotFound, hint)
}

// Environments returns all of them, by name.
func (c *Catalogue) Environments(ctx context.Context) ([]*dsecv1.NamedEnvironment, error) {
	entries, err := c.kv.List(ctx, envPrefix)
	if err != nil {
		return nil, err
	}
	out := make([]*dsecv1.NamedEnvironment, len(entries))
	for n, e := range entries {
		if out[n], err = decodeEnvironment(e); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// DeleteEnvironment forgets one. Errors: sandbox.ErrInvalid, ErrNotFound.
func (c *Catalogue) DeleteEnvironment(ctx context.Context, name string) (*dsecv1.NamedEnvironment, error) {
	if err := layer.CheckName(name); err != nil {
		return nil, fmt.Errorf("environment: %w", err)
	}
	var gone *dsecv1.NamedEnvironment
	err := change(ctx, c.kv, envPrefix+name, func(e Entry) ([]byte, bool, error) {
		if e.Revision == 0 {
			return nil, false, c.unknownEnvironment(ctx, name)
		}
		var err error
		gone, err = decodeEnvironment(e)
		return nil, false, err
	})
	return gone, err
}

// applyDefaults lays what a named environment says over what its images say.
func applyDefaults(out *dsecv1.ResolvedEnvironment, e *dsecv1.NamedEnvironment) {
	names := make([]string, 0, len(e.GetEnv()))
	for name := range e.GetEnv() {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		out.Config.Env = setVariable(out.Config.Env, name+"="+e.Env[name])
	}
	if e.GetUser() != "" {
		out.Config.User = e.GetUser()
	}
	if e.GetWorkdir() != "" {
		out.Config.Workdir = e.GetWorkdir()
	}
	out.Limits = e.GetLimits()
}

// usersOf returns the environments of which a reference means one of the versions that fit.
func (c *Catalogue) usersOf(ctx context.Context, kind dsecv1.LayerKind, name string, rec *record, fits func(*dsecv1.Layer) bool) ([]string, error) {
	all, err := c.Environments(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range all {
		refs, err := references(e.GetStack())
		if err != nil {
			return nil, fmt.Errorf("environment %s: %w", e.GetName(), err)
		}
		if slices.ContainsFunc(refs, func(r *reference) bool { return r.kind == kind && r.means(name, rec, fits) }) {
			out = append(out, e.GetName())
		}
	}
	return out, nil
}

// means tells whether a reference is at one of the versions of a name that fit.
func (r *reference) means(name string, rec *record, fits func(*dsecv1.Layer) bool) bool {
	at := rec.newest(func(l *dsecv1.Layer) bool {
		switch {
		case r.digest != "":
			return l.Digest == r.digest
		case r.name == "" && r.image: // the source that it was imported from
			return l.Source == canonicalSource(r.text)
		case r.name != name:
			return r.image && l.Source != "" && l.Source == canonicalSource(r.text)
		case r.version != "":
			return l.Version == r.version
		case r.tag != "":
			n, ok := rec.Tags[r.tag]
			return ok && l.Version == formatVersion(n)
		}
		return true
	})
	return at != nil && fits(at)
}

// canonicalSource is how a source is kept, "" if it is none.
func canonicalSource(text string) string {
	s, err := oci.Canonical(text)
	if err != nil {
		return ""
	}
	return s
}
