package microvm

import (
	"errors"
	"log/slog"
	"testing"
	"time"
)

// TestPoolNext: the shape asked for last is provided for first, never while creations are under way nor soon after a
// failure; shapes that nobody asks for, or that are too many, give back what they have.
func TestPoolNext(t *testing.T) {
	p := newPool(&Driver{cfg: Config{Warm: 1, WarmIdle: time.Minute}, log: slog.New(slog.DiscardHandler)})
	now := time.Now()
	stock1 := func(memory int64, ago time.Duration, ready ...*instance) *stock {
		st := &stock{shape: shape{1, memory}, used: now.Add(-ago), ready: ready}
		p.stocks[st.shape] = st
		return st
	}
	want := func(what string, best *stock, given int) {
		t.Helper()
		got, give, wait := p.next(now)
		if got != best || len(give) != given || wait < 0 || best == nil && given == 0 && wait == 0 {
			t.Errorf("%s: %+v, %d given back, wait %v", what, got, len(give), wait)
		}
	}
	want("nothing", nil, 0)
	a, b := stock1(1, 2*time.Second), stock1(2, time.Second)
	want("two", b, 0)
	p.busy = 1
	want("busy", nil, 0)
	p.busy, p.ended = 0, now
	want("just after", nil, 0)
	p.ended = now.Add(-quietTime)
	p.settle(b, errors.New("no"))
	want("after a failure", a, 0)
	a.ready = []*instance{{}}
	want("full", nil, 0)
	a.used = now.Add(-2 * time.Minute)
	want("idle", nil, 1)
	if p.stocks[a.shape] != nil {
		t.Error("it is kept")
	}
	for i := range maxShapes {
		stock1(int64(10+i), time.Duration(i)*time.Second, &instance{})
	}
	b.used, b.ready = now.Add(-50*time.Second), []*instance{{}, {}}
	want("too many", nil, 2)
	if len(p.stocks) != maxShapes || p.stocks[b.shape] != nil {
		t.Errorf("kept %v", p.stocks)
	}
}
