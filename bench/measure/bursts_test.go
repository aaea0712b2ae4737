package measure

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
)

// TestBursts: the runs of one burst are all under way before any of them ends, no two bursts overlap, and each is
// followed by its rest.
func TestBursts(t *testing.T) {
	const n, size = 5, 8
	var inside, rests atomic.Int32
	gate := make([]sync.WaitGroup, n)
	for i := range gate {
		gate[i].Add(size)
	}
	broken := errors.New("broken")
	times, failures, first := Bursts(t.Context(), n, size, func(_ context.Context, i int) error {
		inside.Add(1)
		burst := i / size
		if int(rests.Load()) != burst {
			t.Errorf("run %d after %d rests", i, rests.Load())
		}
		gate[burst].Done()
		gate[burst].Wait()
		if i == 11 {
			return broken
		}
		return nil
	}, func(context.Context) error {
		if got := inside.Swap(0); got != size {
			t.Errorf("%d runs before the rest", got)
		}
		rests.Add(1)
		return nil
	})
	if len(times) != n*size-1 || failures != 1 || !errors.Is(first, broken) || rests.Load() != n {
		t.Errorf("%d times, %d failures, %v, %d rests", len(times), failures, first, rests.Load())
	}
	_, _, first = Bursts(t.Context(), n, 1, func(context.Context, int) error { return nil }, func(context.Context) error { return broken })
	if !errors.Is(first, broken) {
		t.Errorf("a rest that fails: %v", first)
	}
}
