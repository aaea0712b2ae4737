package initd_test

import (
	"slices"
	"testing"
	"time"

	"github.com/opendsec/dsec/guest/guesttest"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/internal/testkit/patience"
)

// TestFigures prints what one sandbox costs; it asserts only the bounds that are promised.
func TestFigures(t *testing.T) {
	var claims []time.Duration
	for range 10 {
		s := guesttest.Spawn(t, guesttest.Options{})
		root, _ := guesttest.Root(t)
		c := s.Open()
		ctx, cancel := guesttest.Context(t)
		defer cancel()
		began := time.Now()
		if err := c.Claim(ctx, &wire.Claim{Hostname: "h"}, root); err != nil {
			t.Fatal(err)
		}
		claims = append(claims, time.Since(began))
	}
	report(t, "claim", claims)
	warm := guesttest.Spawn(t, guesttest.Options{})
	warm.Open()
	t.Logf("warm shell: %+v", warm.Memory(t))

	b := newBox(t, nil)
	var trips []time.Duration
	n := 500 / patience.Factor()
	for range n {
		began := time.Now()
		res := b.run(wire.Start{Argv: []string{"/bin/true"}})
		trips = append(trips, time.Since(began))
		if res.Exit.Code != 0 {
			t.Fatal(res)
		}
	}
	report(t, "exec of /bin/true", trips)
	t.Logf("after %d commands: %+v", n, b.Memory(t))
}

func report(t *testing.T, what string, l []time.Duration) {
	slices.Sort(l)
	t.Logf("%s: p50 %v p90 %v p99 %v max %v", what, l[len(l)/2], l[len(l)*9/10], l[len(l)*99/100], l[len(l)-1])
}
