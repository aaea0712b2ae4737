package environment

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// Catalogue knows the published layers by kind, name and version. It is safe for concurrent use, also by
// several processes on one KV, and keeps nothing in memory.
type Catalogue struct {
	kv  KV
	now func() time.Time
}

// New returns the catalogue in kv. now stamps what is published.
func New(kv KV, now func() time.Time) *Catalogue { return &Catalogue{kv: kv, now: now} }

// Publish makes a layer known under the next version of its kind and name, and returns it with version and
// time. When a version of that name has the same content, the newest such is returned instead (reused); the name
// goes on meaning its newest version. The same image under another registry reference is a version of its own,
// so that both references are found. Errors: sandbox.ErrInvalid, ErrExhausted, ErrUnavailable.
func (c *Catalogue) Publish(ctx context.Context, l *dsecv1.Layer) (published *dsecv1.Layer, reused bool, err error) {
	kind, err := checkKind(l.GetKind())
	if err != nil {
		return nil, false, err
	}
	if err := layer.CheckName(l.GetName()); err != nil {
		return nil, false, err
	}
	if _, err := layer.ParseDigest(l.GetDigest()); err != nil {
		return nil, false, err
	}
	l = proto.Clone(l).(*dsecv1.Layer)
	l.Kind = kind
	if err := c.index(ctx, l); err != nil {
		return nil, false, err
	}
	err = change(ctx, c.kv, nameKey(kind, l.Name), func(e Entry) ([]byte, bool, error) {
		r, err := decodeRecord(e)
		if err != nil {
			return nil, false, err
		}
		published = r.newest(func(v *dsecv1.Layer) bool {
			return v.Digest == l.Digest && slices.Equal(v.Below, l.Below) && proto.Equal(v.OnStart, l.OnStart) && (v.Source == l.Source || !strings.HasPrefix(l.Source, imageScheme))
		})
		if reused = published != nil; reused {
			return nil, true, nil
		}
		r.Last++
		l.Version, l.CreatedAt = formatVersion(r.Last), timestamppb.New(c.now())
		published = l
		r.Versions = append(r.Versions, l)
		b, err := r.encode()
		if err == nil && len(b) > maxRecord {
			err = fmt.Errorf("%w: it has %d versions; delete old ones", sandbox.ErrExhausted, len(r.Versions))
		}
		return b, false, err
	})
	if err != nil {
		return nil, false, fmt.Errorf("publish %s %s: %w", kindWord(kind), l.Name, err)
	}
	// Once more: somebody who deleted the last such version may have taken the entry out meanwhile.
	return published, reused, c.index(ctx, l)
}

// index makes a layer findable by its content and source. An entry may lead to nothing; there must be one for
// every version.
func (c *Catalogue) index(ctx context.Context, l *dsecv1.Layer) error {
	for _, key := range indexKeys(l) {
		if err := index(ctx, c.kv, key, l.Name, true); err != nil {
			return fmt.Errorf("publish %s %s: %w", kindWord(l.Kind), l.Name, err)
		}
	}
	return nil
}

// unindex takes a name out of an index, and back in when a version that belongs there was published meanwhile.
func (c *Catalogue) unindex(ctx context.Context, kind dsecv1.LayerKind, name, key string) error {
	if err := index(ctx, c.kv, key, name, false); err != nil {
		return err
	}
	entries, err := c.kv.Get(ctx, nameKey(kind, name))
	if err != nil {
		return err
	}
	r, err := decodeRecord(entries[0])
	if err != nil {
		return err
	}
	if r.newest(func(l *dsecv1.Layer) bool { return slices.Contains(indexKeys(l), key) }) == nil {
		return nil
	}
	return index(ctx, c.kv, key, name, true)
}

// indexKeys are where a layer is found other than by its name.
func indexKeys(l *dsecv1.Layer) []string {
	keys := []string{digestKey(l.Kind, l.Digest)}
	if l.Kind == dsecv1.LayerKind_LAYER_KIND_BASE && strings.HasPrefix(l.Source, imageScheme) {
		keys = append(keys, sourceKey(l.Source))
	}
	return keys
}

const imageScheme = "docker://"

// List returns layers, oldest version first, of one kind or (unspecified) of all, and of one name or all.
func (c *Catalogue) List(ctx context.Context, kind dsecv1.LayerKind, name string) ([]*dsecv1.Layer, error) {
	which := kinds
	if kind != dsecv1.LayerKind_LAYER_KIND_UNSPECIFIED {
		if _, err := checkKind(kind); err != nil {
			return nil, err
		}
		which = []dsecv1.LayerKind{kind}
	}
	var out []*dsecv1.Layer
	for _, k := range which {
		var entries []Entry
		var err error
		if name == "" {
			entries, err = c.kv.List(ctx, nameKey(k, ""))
		} else {
			entries, err = c.kv.Get(ctx, nameKey(k, name))
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			r, err := decodeRecord(e)
			if err != nil {
				return nil, err
			}
			for _, l := range r.Versions {
				out = append(out, withTags(r, l))
			}
		}
	}
	return out, nil
}

// Delete forgets one version of a name, or all when version is empty, and the tags that are at them. What no version is
// made of any more is found by Collect; sandboxes that run keep it. What an environment names is refused unless force is
// set. Errors: sandbox.ErrNotFound, ErrInvalid, ErrFailedPrecondition.
func (c *Catalogue) Delete(ctx context.Context, kind dsecv1.LayerKind, name, version string, force bool) ([]*dsecv1.Layer, error) {
	kind, err := checkKind(kind)
	if err != nil {
		return nil, err
	}
	if version != "" {
		if _, err := parseVersion(version); err != nil {
			return nil, err
		}
	}
	var gone, left []*dsecv1.Layer
	var before *record
	err = change(ctx, c.kv, nameKey(kind, name), func(e Entry) ([]byte, bool, error) {
		r, err := decodeRecord(e)
		if err != nil {
			return nil, false, err
		}
		before = &record{Last: r.Last, Versions: slices.Clone(r.Versions), Tags: maps.Clone(r.Tags)}
		gone, left = nil, nil
		for _, l := range r.Versions {
			if version == "" || l.Version == version {
				gone = append(gone, l)
			} else {
				left = append(left, l)
			}
		}
		if len(gone) == 0 {
			return nil, false, c.unknown(ctx, kind, name, version, r)
		}
		if !force {
			if err := c.unused(ctx, kind, name, r, gone); err != nil {
				return nil, false, err
			}
		}
		if err := c.bury(ctx, gone); err != nil { // before: nothing is forgotten that no Collect would find
			return nil, false, err
		}
		r.Versions = left // Last stays: a version is never given twice
		for _, l := range gone {
			maps.DeleteFunc(r.Tags, func(_ string, n int64) bool { return formatVersion(n) == l.Version })
		}
		b, err := r.encode()
		return b, false, err
	})
	if err != nil {
		return nil, fmt.Errorf("delete: %w", err)
	}
	if !force {
		if err := c.confirmDelete(ctx, kind, name, before, gone); err != nil {
			return nil, fmt.Errorf("delete: %w", err)
		}
	}
	// Once more: a Collect that saw the version still named has taken the note away.
	if err := c.bury(ctx, gone); err != nil {
		return gone, fmt.Errorf("delete: %w", err)
	}
	for _, l := range gone {
		for _, key := range indexKeys(l) {
			if slices.ContainsFunc(left, func(o *dsecv1.Layer) bool { return slices.Contains(indexKeys(o), key) }) {
				continue
			}
			if err := c.unindex(ctx, kind, name, key); err != nil {
				return gone, fmt.Errorf("delete: %w", err)
			}
		}
	}
	return gone, nil
}

// unused refuses to delete what environments mean.
func (c *Catalogue) unused(ctx context.Context, kind dsecv1.LayerKind, name string, r *record, gone []*dsecv1.Layer) error {
	users, err := c.usersOf(ctx, kind, name, r, func(l *dsecv1.Layer) bool { return slices.Contains(gone, l) })
	if err != nil || len(users) == 0 {
		return err
	}
	more := ""
	if n := len(users); n > maxOffered {
		users, more = users[:maxOffered], fmt.Sprintf(" and %d more", n-maxOffered)
	}
	return fmt.Errorf("%s %s: %w: it is in use by environment %s%s; change or delete that first, or force it", kindWord(kind), name,
		sandbox.ErrFailedPrecondition, strings.Join(users, ", "), more)
}
