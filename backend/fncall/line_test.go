package fncall

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// TestLineTurns: keys get places in turn, however many calls each of them has waiting.
func TestLineTurns(t *testing.T) {
	l := newLine(1, 100, 50)
	if err := l.enter(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	got := make(chan string)
	wait := func(key string, n int) {
		for range n {
			before := l.length()
			go func() {
				if err := l.enter(context.Background(), key); err != nil {
					t.Error(err)
				}
				got <- key
			}()
			for l.length() == before {
				time.Sleep(10 * time.Microsecond)
			}
		}
	}
	wait("many", 6)
	wait("few", 2)
	wait("one", 1)
	want := []string{"many", "few", "one", "many", "few", "many", "many", "many", "many"}
	for n, w := range want {
		l.leave()
		if k := <-got; k != w {
			t.Fatalf("place %d went to %s, want %s", n, k, w)
		}
	}
	l.leave()
	if l.free != 1 || l.length() != 0 || len(l.turn) != 0 || len(l.queues) != 0 {
		t.Errorf("the line is not empty: %+v", l)
	}
}

func TestLineFull(t *testing.T) {
	l := newLine(1, 3, 2)
	ctx, cancel := context.WithCancel(t.Context())
	_ = l.enter(ctx, "a")
	var wg sync.WaitGroup
	for n, key := range []string{"a", "a", "b"} {
		wg.Go(func() {
			if err := l.enter(ctx, key); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		for l.length() == n {
			time.Sleep(10 * time.Microsecond)
		}
		if n == 1 {
			if err := l.enter(ctx, "a"); !errors.Is(err, sandbox.ErrExhausted) {
				t.Errorf("a key with two that wait: %v", err)
			}
		}
	}
	if err := l.enter(ctx, "c"); !errors.Is(err, sandbox.ErrExhausted) {
		t.Errorf("a line that is full: %v", err)
	}
	cancel()
	wg.Wait()
	l.leave()
	if l.free != 1 || l.length() != 0 || len(l.turn) != 0 {
		t.Errorf("the line is not empty: %+v", l)
	}
}

// TestLineMany: places are neither lost nor made, whoever gives up when.
func TestLineMany(t *testing.T) {
	l := newLine(3, 1000, 1000)
	var wg sync.WaitGroup
	var mu sync.Mutex
	in, most := 0, 0
	for n := range 300 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(n%7+1)*200*time.Microsecond)
			defer cancel()
			if n%3 > 0 {
				ctx = context.Background()
			}
			if l.enter(ctx, fmt.Sprint(n%5)) != nil {
				return
			}
			mu.Lock()
			in++
			most = max(most, in)
			mu.Unlock()
			time.Sleep(100 * time.Microsecond)
			mu.Lock()
			in--
			mu.Unlock()
			l.leave()
		})
	}
	wg.Wait()
	if most > 3 || l.free != 3 || l.length() != 0 || len(l.turn) != 0 {
		t.Errorf("%d at once; %+v", most, l)
	}
}
