package container

import (
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/opendsec/dsec/guest/wire"
)

// TestCostOfStages prints what each part of a sandbox's life costs at the driver's level; it measures and
// asserts nothing about time.
func TestCostOfStages(t *testing.T) {
	b := newBed(t, func(c *Config) { c.Warm = 8 })
	var mu sync.Mutex
	took := map[string][]time.Duration{}
	note := func(stage string, d time.Duration) {
		mu.Lock()
		took[stage] = append(took[stage], d)
		mu.Unlock()
	}
	b.d.SetObserver(note)
	for range 60 {
		start := time.Now()
		i := b.create(nil)
		note("create", time.Since(start))
		conn := connect(t, i)
		t1 := time.Now()
		if _, e := conn.start(&wire.Start{Argv: []string{"/bin/true"}}); e.Code != 0 {
			t.Fatal(e)
		}
		note("first_exec", time.Since(t1))
		note("create_first_result", time.Since(start))
		t1 = time.Now()
		if _, e := conn.start(&wire.Start{Argv: []string{"/bin/true"}}); e.Code != 0 {
			t.Fatal(e)
		}
		note("second_exec", time.Since(t1))
		conn.conn.Close()
		if err := i.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	names := make([]string, 0, len(took))
	for n := range took {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		v := took[n]
		sort.Slice(v, func(i, j int) bool { return v[i] < v[j] })
		t.Logf("%-20s n %3d  p50 %8v  p90 %8v  max %8v", n, len(v), v[len(v)/2].Round(time.Microsecond), v[len(v)*9/10].Round(time.Microsecond), v[len(v)-1].Round(time.Microsecond))
	}
}
