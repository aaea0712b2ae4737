package environment_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/opendsec/dsec/environment"
	"github.com/opendsec/dsec/sandbox"
)

// A layer is removed when its last name goes, whatever the kind, and not before; what cannot be removed yet is tried again.
func TestCollect(t *testing.T) {
	each(t, func(t *testing.T, kv environment.KV) {
		ctx := t.Context()
		c := environment.New(kv, time.Now)
		var removed []string
		var answer error
		collect := func(want ...string) {
			t.Helper()
			removed = nil
			err := c.Collect(ctx, func(_ context.Context, d string) error {
				removed = append(removed, d)
				return answer
			})
			if (err != nil) != (answer != nil && !errors.Is(answer, sandbox.ErrNotFound)) || !slices.Equal(removed, want) {
				t.Errorf("collected %v, %v; want %v", removed, err, want)
			}
		}
		drop := func(name, version string) {
			t.Helper()
			if _, err := c.Delete(ctx, base, name, version, false); err != nil {
				t.Fatal(err)
			}
		}
		publish(t, c, layerOf(base, "a", 1))
		publish(t, c, layerOf(base, "a", 2))
		publish(t, c, layerOf(base, "b", 1))
		publish(t, c, layerOf(workspace, "w", 2))
		collect()
		drop("a", "")
		collect() // both have other names
		drop("b", "v1")
		answer = sandbox.ErrConflict
		collect(digest(1))
		answer = nil
		collect(digest(1))
		collect()
		publish(t, c, layerOf(base, "b", 3))
		drop("b", "")
		publish(t, c, layerOf(base, "c", 3)) // named again before anybody looked
		collect()
		drop("c", "")
		answer = sandbox.ErrNotFound
		collect(digest(3))
		collect()
	})
}
