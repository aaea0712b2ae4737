package link

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/google/nftables"

	"github.com/opendsec/dsec/sandbox"
)

// TestRouters: a router is found from the namespace that its uplink ends in, and from no other; one that is destroyed from
// elsewhere takes nothing there with it.
func TestRouters(t *testing.T) {
	root(t)
	host, other := space(t), space(t)
	config := func() Config {
		t.Helper()
		return Config{Dir: t.TempDir() + "/a b", Plan: DefaultPlan(), Uplink: DefaultUplink()}
	}
	found := func(s interface{ Do(func() error) error }) (dirs []string) {
		t.Helper()
		if err := s.Do(func() (err error) {
			dirs, err = Routers()
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return dirs
	}
	open := func(cfg Config) (r *Router) {
		t.Helper()
		if err := host.Do(func() (err error) {
			r, err = Open(cfg)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return r
	}
	guarded := func() bool {
		t.Helper()
		c, err := connect(host.File())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.CloseLasting() }()
		tables, err := c.ListTables()
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(tables, func(table *nftables.Table) bool { return table.Name == "dsec_dsec-up" })
	}
	a := config()
	r := open(a)
	if got := found(host); !slices.Contains(got, a.Dir) {
		t.Errorf("in its namespace: %q", got)
	}
	if got := found(other); slices.Contains(got, a.Dir) {
		t.Errorf("in another namespace: %q", got)
	}
	// A second one is refused, leaves nothing, and is not found.
	b := config()
	if err := host.Do(func() error {
		_, err := Open(b)
		return err
	}); !errors.Is(err, sandbox.ErrAlreadyExists) {
		t.Errorf("a second router of one host: %v", err)
	}
	if got := found(host); slices.Contains(got, b.Dir) {
		t.Errorf("one that was refused: %q", got)
	}
	if left, err := os.ReadDir(b.Dir); err != nil || len(left) > 0 {
		t.Errorf("one that was refused left %v, %v", left, err)
	}
	// Destroyed from another namespace: that one's table, which may be another node's, is not touched.
	var away *Router
	c := config()
	if err := other.Do(func() (err error) {
		away, err = Open(c)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := host.Do(away.Destroy); err != nil {
		t.Error(err)
	}
	if !guarded() {
		t.Error("the host's guard went with a router of elsewhere")
	}
	if err := host.Do(r.Destroy); err != nil {
		t.Error(err)
	}
	if guarded() {
		t.Error("its guard is left")
	}
	if got := found(host); slices.Contains(got, a.Dir) {
		t.Errorf("after its end: %q", got)
	}
	if left, err := os.ReadDir(a.Dir); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}
