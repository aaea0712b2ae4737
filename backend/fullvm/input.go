package fullvm

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/sandbox"
)

// Pace of typing.
const (
	defaultInterval = 30 * time.Millisecond
	// A processor that is busy is given so much time of its own to take a key, and of all at most so much.
	keyWork = 10 * time.Millisecond
	keyWait = 2 * time.Second
)

// absolute is the range of an axis.
const absolute = 0x7fff

// event is one of QEMU's input events.
type event map[string]any

func keyEvent(key string, down bool) event {
	return event{"type": "key", "data": map[string]any{"down": down, "key": map[string]any{"type": "qcode", "data": key}}}
}

func buttonEvent(button string, down bool) event {
	return event{"type": "btn", "data": map[string]any{"down": down, "button": button}}
}

func (i *instance) send(ctx context.Context, events ...event) error {
	return i.query(ctx, "input-send-event", map[string]any{"events": events}, nil)
}

// onScreen runs f while the screen is held and the machine lives.
func (i *instance) onScreen(ctx context.Context, f func(ctx context.Context) error) error {
	release, err := i.use(ctx)
	if err != nil {
		return err
	}
	defer release()
	ctx, stop := i.until(ctx)
	defer stop()
	if err = f(ctx); err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Move implements sandbox.Screen.
func (i *instance) Move(ctx context.Context, x, y int) error {
	return i.onScreen(ctx, func(ctx context.Context) error {
		_, w, h, err := i.picture(ctx)
		if err != nil {
			return err
		}
		if x < 0 || y < 0 || x >= w || y >= h {
			return fmt.Errorf("%d,%d: %w: the screen has %d by %d pixels", x, y, sandbox.ErrInvalid, w, h)
		}
		axis := func(name string, at, size int) event {
			return event{"type": "abs", "data": map[string]any{"axis": name, "value": at * absolute / max(1, size-1)}}
		}
		if err := i.send(ctx, axis("x", x, w), axis("y", y, h)); err != nil {
			return err
		}
		return i.pace(ctx, defaultInterval)
	})
}

// Click implements sandbox.Screen.
func (i *instance) Click(ctx context.Context, button string, count int) error {
	if button == "" {
		button = "left"
	}
	if !slices.Contains([]string{"left", "middle", "right"}, button) {
		return fmt.Errorf("button %.40q: %w: want left, middle or right", button, sandbox.ErrInvalid)
	}
	return i.onScreen(ctx, func(ctx context.Context) error { return i.clicks(ctx, button, count) })
}

// Scroll implements sandbox.Screen.
func (i *instance) Scroll(ctx context.Context, steps int) error {
	button := "wheel-down"
	if steps < 0 {
		button, steps = "wheel-up", -steps
	}
	return i.onScreen(ctx, func(ctx context.Context) error { return i.clicks(ctx, button, steps) })
}

func (i *instance) clicks(ctx context.Context, button string, count int) error {
	for range count {
		for _, down := range []bool{true, false} {
			if err := i.send(ctx, buttonEvent(button, down)); err != nil {
				return err
			}
			if err := i.pace(ctx, defaultInterval); err != nil {
				return err
			}
		}
	}
	return nil
}

// Press implements sandbox.Screen.
func (i *instance) Press(ctx context.Context, keys []string, hold time.Duration) error {
	var codes []string
	for _, name := range keys {
		k, err := keyOf(name)
		if err != nil {
			return err
		}
		codes = append(codes, k)
	}
	return i.onScreen(ctx, func(ctx context.Context) error {
		return i.chord(ctx, codes, max(hold, defaultInterval), defaultInterval)
	})
}

// chord presses keys, waits, lets go of them and waits. Whatever happens no key stays down.
func (i *instance) chord(ctx context.Context, keys []string, hold, after time.Duration) error {
	var down, up []event
	for n := range keys {
		down = append(down, keyEvent(keys[n], true))
		up = append(up, keyEvent(keys[len(keys)-1-n], false))
	}
	if err := i.send(ctx, down...); err != nil {
		return err
	}
	err := i.pace(ctx, hold)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	if uerr := i.send(last, up...); uerr != nil {
		if status, serr := i.status(last); serr == nil && qemu.Over(status) {
			return nil // it was switched off by these keys
		}
		if err == nil {
			err = uerr
		}
	}
	if err != nil {
		return err
	}
	return i.pace(ctx, after)
}

// Type implements sandbox.Screen.
func (i *instance) Type(ctx context.Context, text string, interval time.Duration) error {
	all, err := strokes(text)
	if err != nil {
		return err
	}
	if interval <= 0 {
		interval = defaultInterval
	}
	return i.onScreen(ctx, func(ctx context.Context) error {
		for n, s := range all {
			keys := []string{s.key}
			if s.shift {
				keys = []string{"shift", s.key}
			}
			if err := i.chord(ctx, keys, interval/2, interval/2); err != nil {
				return fmt.Errorf("after %d of %d characters: %w", n, len(all), err)
			}
		}
		return nil
	})
}

// pace waits for d, and then until the machine has had the time to take what was sent: keyboards have queues of a few
// keys and drop what is too much, and a machine that does not get a processor takes nothing from them. A processor of its
// that waits has nothing left to do; one that is busy must have run for a moment.
func (i *instance) pace(ctx context.Context, d time.Duration) error {
	threads, err := i.processors(ctx)
	if err != nil {
		return err
	}
	before := i.worked(threads)
	if err := sleep(ctx, d); err != nil {
		return err
	}
	for end := time.Now().Add(keyWait); time.Now().Before(end); {
		if i.idle(threads) || i.worked(threads)-before >= keyWork {
			return nil
		}
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// processors are the threads that run the machine's.
func (i *instance) processors(ctx context.Context) ([]int, error) {
	var cpus []struct {
		Thread int `json:"thread-id"`
	}
	if err := i.query(ctx, "query-cpus-fast", nil, &cpus); err != nil {
		return nil, err
	}
	var out []int
	for _, c := range cpus {
		if !slices.Contains(out, c.Thread) {
			out = append(out, c.Thread)
		}
	}
	return out, nil
}

func (i *instance) task(thread int, name string) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/%s", i.limits.PID, thread, name))
	return string(b)
}

// worked is how long the threads have run.
func (i *instance) worked(threads []int) time.Duration {
	var total time.Duration
	for _, t := range threads {
		if ns, _, ok := strings.Cut(i.task(t, "schedstat"), " "); ok {
			n, _ := strconv.ParseInt(ns, 10, 64)
			total += time.Duration(n)
		}
	}
	return total
}

// idle tells whether none of the threads runs or wants to.
func (i *instance) idle(threads []int) bool {
	for _, t := range threads {
		s := i.task(t, "stat")
		if at := strings.LastIndexByte(s, ')'); at >= 0 && strings.HasPrefix(s[at:], ") R") {
			return false
		}
	}
	return true
}

// VNC implements sandbox.Screen.
func (i *instance) VNC(ctx context.Context) (net.Conn, error) {
	select {
	case <-i.done:
		return nil, i.gone()
	default:
	}
	c, err := qemu.Dial(ctx, i.d.dir(i.id), screenName)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	return c, nil
}
