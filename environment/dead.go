package environment

import (
	"context"
	"errors"
	"fmt"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// "dead/<digest>" is there for every layer that a version was deleted of, until it is known that another names it or
// its content is gone.
const deadPrefix = "dead/"

const (
	// maxDead bounds what one Collect looks at.
	maxDead = 10_000
	// listFresh is for how long one look at all names is believed. An importer keeps what is new for longer.
	listFresh = 15 * time.Second
)

// bury notes that a layer may have lost its last name. It always changes the entry: a Collect that looked before must
// not take it away.
func (c *Catalogue) bury(ctx context.Context, gone []*dsecv1.Layer) error {
	for _, l := range gone {
		for _, d := range append([]string{l.Digest}, l.Below...) {
			err := change(ctx, c.kv, deadPrefix+d, func(Entry) ([]byte, bool, error) { return []byte("1"), false, nil })
			if err != nil {
				return fmt.Errorf("note that %s may go: %w", d, err)
			}
		}
	}
	return nil
}

// Collect calls remove for every layer that lost its last name, until it returns nil (or sandbox.ErrNotFound) for it once.
// remove must refuse what was imported a moment ago, because it may be published under a name at this moment; it is called
// again for that by a later Collect. Errors of single layers are joined.
func (c *Catalogue) Collect(ctx context.Context, remove func(ctx context.Context, digest string) error) error {
	keys, err := c.kv.Keys(ctx, deadPrefix, maxDead)
	if err != nil {
		return err
	}
	var named map[string]bool
	var listed time.Time
	var errs []error
	for _, key := range keys {
		entries, err := c.kv.Get(ctx, key)
		if err != nil {
			return err
		}
		if entries[0].Revision == 0 {
			continue // somebody else collects as well
		}
		if time.Since(listed) > listFresh {
			listed = time.Now()
			if named, err = c.Named(ctx); err != nil {
				return err
			}
		}
		digest := key[len(deadPrefix):]
		if !named[digest] {
			if err := remove(ctx, digest); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
				errs = append(errs, fmt.Errorf("remove layer %s: %w", digest, err))
				continue
			}
		}
		if err := c.kv.Delete(ctx, key, entries[0].Revision); err != nil && !errors.Is(err, sandbox.ErrConflict) {
			return err
		}
	}
	return errors.Join(errs...)
}

// Named returns the digests of all that something refers to: versions of names, what lies below them, steps of builds.
func (c *Catalogue) Named(ctx context.Context) (map[string]bool, error) {
	all, err := c.List(ctx, dsecv1.LayerKind_LAYER_KIND_UNSPECIFIED, "")
	if err != nil {
		return nil, err
	}
	steps, err := c.steps(ctx)
	if err != nil {
		return nil, err
	}
	out := make(map[string]bool, len(all)+len(steps))
	for _, l := range append(all, steps...) {
		out[l.Digest] = true
		for _, d := range l.Below {
			out[d] = true
		}
	}
	return out, nil
}
