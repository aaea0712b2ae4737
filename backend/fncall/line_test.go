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
	l := newLine(1, 0, 100, 50)
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
	runs := "first"
	for n, w := range want {
		l.leave(runs)
		runs = w
		if k := <-got; k != w {
			t.Fatalf("place %d went to %s, want %s", n, k, w)
		}
	}
	l.leave(runs)
	if l.free != 1 || l.length() != 0 || len(l.turn) != 0 || len(l.queues) != 0 || len(l.running) != 0 {
		t.Errorf("the line is not empty: %+v", l)
	}
}

func TestLineFull(t *testing.T) {
	l := newLine(1, 0, 3, 2)
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
	l.leave("a")
	if l.free != 1 || l.length() != 0 || len(l.turn) != 0 {
		t.Errorf("the line is not empty: %+v", l)
	}
}

// TestLineMany: places are neither lost nor made, whoever gives up when.
func TestLineMany(t *testing.T) {
	l := newLine(3, 2, 1000, 1000)
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
			l.leave(fmt.Sprint(n % 5))
		})
	}
	wg.Wait()
	if most > 5 || l.free != 3 || l.beyond != 0 || len(l.running) != 0 || l.length() != 0 || len(l.turn) != 0 {
		t.Errorf("%d at once; %+v", most, l)
	}
}

// TestLineBeyond: who has no call running waits for nobody's end, as long as there are places beyond the number.
func TestLineBeyond(t *testing.T) {
	l := newLine(2, 2, 100, 100)
	enter := func(key string) chan error {
		got := make(chan error, 1)
		before := l.length()
		go func() { got <- l.enter(context.Background(), key) }()
		for len(got) == 0 && l.length() == before {
			time.Sleep(10 * time.Microsecond)
		}
		return got
	}
	at := func(got chan error, in bool) {
		t.Helper()
		if (len(got) == 1) != in {
			t.Fatalf("has a place: %v, want %v (%+v)", !in, in, l)
		}
	}
	enter("long")
	enter("long")
	third := enter("long") // both places hold its calls
	at(third, false)
	one := enter("one")
	at(one, true)
	again := enter("one") // one beyond the number, no more
	at(again, false)
	at(enter("two"), true)
	late := enter("late")
	at(late, false)
	l.leave("two") // now there is one for who has none, not for those before it in line
	if err := <-late; err != nil || len(third) > 0 || len(again) > 0 {
		t.Fatalf("%v; %+v", err, l)
	}
	l.leave("one")
	if err := <-again; err != nil || len(third) > 0 {
		t.Fatalf("%v; %+v", err, l)
	}
	for _, key := range []string{"one", "late"} {
		l.leave(key)
		at(third, false)
	}
	l.leave("long")
	if err := <-third; err != nil {
		t.Fatal(err)
	}
	l.leave("long")
	l.leave("long")
	if l.free != 2 || l.beyond != 0 || len(l.running) != 0 || len(l.turn) != 0 || len(l.queues) != 0 {
		t.Errorf("the line is not empty: %+v", l)
	}
}
