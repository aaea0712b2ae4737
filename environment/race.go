package environment

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// An environment and the versions that it means are entries of their own, so one may be made while the other is deleted.
// Both look again after they have written, and take back what they wrote: whichever wrote later sees the other's.

// confirm looks again whether all that an environment means is there, after it was written as value; if not it puts back
// what was there before, nil = nothing.
func (c *Catalogue) confirm(ctx context.Context, e *dsecv1.NamedEnvironment, value, before []byte) error {
	_, err := c.resolveStack(ctx, e.GetStack())
	if err == nil {
		return nil
	}
	uerr := change(ctx, c.kv, envPrefix+e.GetName(), func(now Entry) ([]byte, bool, error) {
		return before, !bytes.Equal(now.Value, value), nil // another's is left alone
	})
	if uerr != nil {
		return fmt.Errorf("environment %s: %w; it stays, because it cannot be taken back: %w", e.GetName(), err, uerr)
	}
	return fmt.Errorf("environment %s: %w", e.GetName(), err)
}

// confirmDelete looks again whether an environment means what was deleted of a name, whose record was before; if so it puts
// that back and returns the refusal.
func (c *Catalogue) confirmDelete(ctx context.Context, kind dsecv1.LayerKind, name string, before *record, gone []*dsecv1.Layer) error {
	refusal := c.unused(ctx, kind, name, before, gone)
	if refusal == nil {
		return nil
	}
	err := change(ctx, c.kv, nameKey(kind, name), func(e Entry) ([]byte, bool, error) {
		r, err := decodeRecord(e)
		if err != nil {
			return nil, false, err
		}
		for _, l := range gone {
			if !slices.ContainsFunc(r.Versions, func(o *dsecv1.Layer) bool { return o.Version == l.Version }) {
				r.Versions = append(r.Versions, l)
			}
		}
		slices.SortFunc(r.Versions, func(a, b *dsecv1.Layer) int {
			x, _ := parseVersion(a.Version)
			y, _ := parseVersion(b.Version)
			return int(x - y)
		})
		for tag, n := range before.Tags {
			if _, taken := r.Tags[tag]; !taken && slices.ContainsFunc(gone, func(l *dsecv1.Layer) bool { return l.Version == formatVersion(n) }) {
				if r.Tags == nil {
					r.Tags = map[string]int64{}
				}
				r.Tags[tag] = n
			}
		}
		b, err := r.encode()
		return b, false, err
	})
	if err != nil {
		return fmt.Errorf("%w; it is gone all the same: %w: %w", refusal, sandbox.ErrUnavailable, err)
	}
	return refusal
}
