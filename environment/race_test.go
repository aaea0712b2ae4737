package environment_test

import (
	"context"
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/environment"
	"github.com/opendsec/dsec/sandbox"
)

// between does something once, right before the first change of a key that begins with prefix.
type between struct {
	environment.KV
	prefix string
	do     func()
}

func (b *between) step(key string) {
	if do := b.do; do != nil && strings.HasPrefix(key, b.prefix) {
		b.do = nil
		do()
	}
}

func (b *between) Put(ctx context.Context, key string, value []byte, revision int64) error {
	b.step(key)
	return b.KV.Put(ctx, key, value, revision)
}

func (b *between) Delete(ctx context.Context, key string, revision int64) error {
	b.step(key)
	return b.KV.Delete(ctx, key, revision)
}

// TestDeleteBesideEnvironment: a version that is deleted while an environment of it is being made, or the other way round: one of
// the two is refused, and nothing means what is not there.
func TestDeleteBesideEnvironment(t *testing.T) {
	each(t, func(t *testing.T, kv environment.KV) {
		ctx := t.Context()
		plain := environment.New(kv, time.Now)
		publish(t, plain, layerOf(base, "debian", 1))
		publish(t, plain, layerOf(toolkit, "agent", 20))
		publish(t, plain, layerOf(toolkit, "agent", 21))
		if _, err := plain.Tag(ctx, toolkit, "agent@v1", "stable", false); err != nil {
			t.Fatal(err)
		}
		env := func(name string, tools ...string) *dsecv1.NamedEnvironment {
			return &dsecv1.NamedEnvironment{Name: name, Stack: &dsecv1.Environment{Base: "debian", Toolkits: tools}}
		}
		if _, err := plain.CreateEnvironment(ctx, env("old"), false); err != nil {
			t.Fatal(err)
		}

		// Looked up, then deleted, then written.
		for name, replace := range map[string]bool{"new": false, "old": true} {
			publish(t, plain, layerOf(toolkit, "gone", 30))
			b := &between{KV: kv, prefix: "env/"}
			b.do = func() {
				if _, err := plain.Delete(ctx, toolkit, "gone", "", false); err != nil {
					t.Errorf("delete: %v", err)
				}
			}
			_, err := environment.New(b, time.Now).CreateEnvironment(ctx, env(name, "gone"), replace)
			says(t, "an environment of what is gone", err, sandbox.ErrNotFound, `"gone"`)
		}
		if got, err := plain.Environment(ctx, "old"); err != nil || len(got.GetStack().GetToolkits()) != 0 {
			t.Errorf("what was to be replaced: %v, %v", got, err)
		}
		if _, err := plain.Environment(ctx, "new"); err == nil {
			t.Error("an environment of what is gone is there")
		}

		// Found unused, then named, then removed.
		made := false
		b := &between{KV: kv, prefix: "name/"}
		b.do = func() {
			if _, err := plain.CreateEnvironment(ctx, env("late", "agent@stable"), false); err != nil {
				t.Errorf("create: %v", err)
			}
			made = true
		}
		_, err := environment.New(b, time.Now).Delete(ctx, toolkit, "agent", "v1", false)
		if !made {
			t.Fatal("nothing happened in between")
		}
		says(t, "deleting what was named meanwhile", err, sandbox.ErrFailedPrecondition, "environment late")
		got, err := plain.Resolve(ctx, &dsecv1.Environment{Name: "late"})
		if err != nil || stack(got) != "debian@v1 agent@v1" {
			t.Errorf("%s, %v", stack(got), err)
		}
		if _, err := plain.Delete(ctx, toolkit, "agent", "v2", false); err != nil {
			t.Errorf("another version: %v", err)
		}
	})
}
