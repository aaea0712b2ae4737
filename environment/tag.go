package environment

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

const (
	maxTag  = 64
	maxTags = 256 // of one name
)

// looksLikeVersion tells v1 from a tag.
func looksLikeVersion(s string) bool {
	digits, ok := strings.CutPrefix(s, "v")
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// checkTag refuses what could not be told from something else. Error: sandbox.ErrInvalid.
func checkTag(tag string) error {
	fail := func(why string) error { return fmt.Errorf("tag %.80q: %w: %s", tag, sandbox.ErrInvalid, why) }
	switch {
	case tag == "" || len(tag) > maxTag:
		return fail(fmt.Sprintf("it must have 1 to %d characters", maxTag))
	case looksLikeVersion(tag):
		return fail("it looks like a version; want another word, as in stable")
	case strings.Trim(tag, "abcdefghijklmnopqrstuvwxyz0123456789._-") != "":
		return fail("want v and a number, as in v1, or a tag of lower-case letters, digits and . _ -")
	case strings.ContainsAny(tag[:1], "._-"):
		return fail("it must begin with a letter or digit")
	}
	return nil
}

// Tag moves a tag to the version that a reference means, or takes it away, and returns that version. Errors:
// sandbox.ErrInvalid, ErrNotFound, ErrExhausted.
func (c *Catalogue) Tag(ctx context.Context, kind dsecv1.LayerKind, ref, tag string, remove bool) (*dsecv1.Layer, error) {
	kind, err := checkKind(kind)
	if err != nil {
		return nil, err
	}
	if err := checkTag(tag); err != nil {
		return nil, err
	}
	r := &reference{kind: kind, text: ref}
	if err := r.parse(); err != nil {
		return nil, err
	}
	if r.name == "" {
		return nil, fmt.Errorf("tag %s: %w: a digest has no tags; name a version", tag, sandbox.ErrInvalid)
	}
	var tagged *dsecv1.Layer
	err = change(ctx, c.kv, nameKey(kind, r.name), func(e Entry) ([]byte, bool, error) {
		rec, err := decodeRecord(e)
		if err != nil {
			return nil, false, err
		}
		if remove {
			if _, ok := rec.Tags[tag]; !ok {
				return nil, false, fmt.Errorf("%s %s: %w: it has no tag %s", kindWord(kind), r.name, sandbox.ErrNotFound, tag)
			}
			delete(rec.Tags, tag)
		} else {
			if tagged, err = c.resolve(ctx, r, rec); err != nil {
				return nil, false, err
			}
			n, err := parseVersion(tagged.Version)
			if err != nil {
				return nil, false, err
			}
			if rec.Tags[tag] == n {
				tagged = withTags(rec, tagged)
				return nil, true, nil
			}
			if rec.Tags == nil {
				rec.Tags = map[string]int64{}
			}
			if rec.Tags[tag] = n; len(rec.Tags) > maxTags {
				return nil, false, fmt.Errorf("%s %s: %w: it has %d tags; take some away", kindWord(kind), r.name, sandbox.ErrExhausted, maxTags)
			}
			tagged = withTags(rec, tagged)
		}
		b, err := rec.encode()
		return b, false, err
	})
	if err != nil {
		return nil, fmt.Errorf("tag: %w", err)
	}
	return tagged, nil
}

// withTags is a version as answers show it.
func withTags(r *record, l *dsecv1.Layer) *dsecv1.Layer {
	if len(r.Tags) == 0 {
		return l
	}
	l = proto.Clone(l).(*dsecv1.Layer)
	l.Tags = nil
	for _, tag := range slices.Sorted(maps.Keys(r.Tags)) {
		if formatVersion(r.Tags[tag]) == l.Version {
			l.Tags = append(l.Tags, tag)
		}
	}
	return l
}

// Get returns the version that NAME, NAME@VERSION, NAME@TAG or a digest means, and the environments that name it.
func (c *Catalogue) Get(ctx context.Context, kind dsecv1.LayerKind, ref string) (*dsecv1.Layer, []string, error) {
	kind, err := checkKind(kind)
	if err != nil {
		return nil, nil, err
	}
	r := &reference{kind: kind, text: ref}
	if err := r.parse(); err != nil {
		return nil, nil, err
	}
	found, err := c.lookUp(ctx, []*reference{r})
	if err != nil {
		return nil, nil, err
	}
	l := found[0]
	entries, err := c.kv.Get(ctx, nameKey(kind, l.Name))
	if err != nil {
		return nil, nil, err
	}
	rec, err := decodeRecord(entries[0])
	if err != nil {
		return nil, nil, err
	}
	users, err := c.usersOf(ctx, kind, l.Name, rec, func(v *dsecv1.Layer) bool { return v.Version == l.Version })
	return withTags(rec, l), users, err
}
