package environment

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/spelling"
	"github.com/opendsec/dsec/sandbox"
)

const (
	maxCompared = 10_000 // names looked through for a better spelling
	maxOffered  = 5
)

// unknown explains that a name, or one version of it, is not there, and what is.
func (c *Catalogue) unknown(ctx context.Context, kind dsecv1.LayerKind, name, version string, r *record) error {
	word := kindWord(kind)
	if len(r.Versions) > 0 {
		var has []string
		for _, l := range slices.Backward(r.Versions) {
			if has = append(has, l.Version); len(has) == maxOffered && len(r.Versions) > maxOffered {
				has = append(has, "...")
				break
			}
		}
		return fmt.Errorf("%s %s@%s: %w: it has %s", word, name, version, sandbox.ErrNotFound, strings.Join(has, ", "))
	}
	hint := ""
	if near := c.near(ctx, kind, name); len(near) > 0 {
		hint = "; is it one of " + strings.Join(near, ", ") + "?"
	}
	return fmt.Errorf("%s %.150q: %w%s %s", word, name, sandbox.ErrNotFound, hint, howTo(kind))
}

func howTo(kind dsecv1.LayerKind) string {
	if kind == dsecv1.LayerKind_LAYER_KIND_BASE {
		return "(import one with: dsec image import docker://HOST/NAME:TAG --name NAME)"
	}
	return fmt.Sprintf("(import one with: dsec layer import --%s NAME DIR)", kindWord(kind))
}

// near returns names that resemble a wrong one, the nearest first. It is a courtesy: errors give none.
func (c *Catalogue) near(ctx context.Context, kind dsecv1.LayerKind, name string) []string {
	prefix := nameKey(kind, "")
	keys, err := c.kv.Keys(ctx, prefix, maxCompared)
	if err != nil {
		return nil
	}
	type candidate struct {
		name string
		far  int
	}
	var found []candidate
	for _, k := range keys {
		n := strings.TrimPrefix(k, prefix)
		if n == name {
			continue // all versions are deleted
		}
		far := spelling.Distance(name, n)
		if name != "" && (strings.Contains(n, name) || strings.Contains(name, n)) {
			far = min(far, 1)
		}
		if far <= max(2, len(name)/3) {
			found = append(found, candidate{n, far})
		}
	}
	slices.SortFunc(found, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.far, b.far), strings.Compare(a.name, b.name)) })
	var out []string
	for _, f := range found[:min(maxOffered, len(found))] {
		out = append(out, f.name)
	}
	return out
}
