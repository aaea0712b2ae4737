package microvm

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// mostTimes is how many times its own time a machine may take, however little the node lets it run.
const mostTimes = 10

// ownTime is a context that ends by itself like one with a deadline.
type ownTime struct {
	context.Context // whose values it has
	done            chan struct{}

	mu  sync.Mutex
	err error
}

// Done is closed when it has ended.
func (o *ownTime) Done() <-chan struct{} { return o.done }

// Err tells why.
func (o *ownTime) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

func (o *ownTime) end(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
		close(o.done)
	}
}

// within bounds what the machine is to do by Config.BootTimeout of its own time: in which it ran or had nothing to do, not
// waited for a processor. On a node with much to do it may take longer, while one that hangs is found out as soon as ever.
func (i *instance) within(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := i.d.cfg.BootTimeout
	o := &ownTime{Context: ctx, done: make(chan struct{})}
	start, waited := time.Now(), waiting(i.limits.PID)
	go func() {
		for left := limit; left > 0; {
			select {
			case <-o.done:
				return
			case <-ctx.Done():
				o.end(ctx.Err())
				return
			case <-time.After(left):
			}
			took := time.Since(start)
			left = limit - took + min(waiting(i.limits.PID)-waited, took)
			left = min(left, mostTimes*limit-took)
		}
		o.end(context.DeadlineExceeded)
	}()
	return o, func() { o.end(context.Canceled) }
}

// waiting is how long the thread of a process waited for a processor that did so the longest; 0 where that is not known.
func waiting(pid int) (most time.Duration) {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/schedstat")
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if f := strings.Fields(string(b)); len(f) == 3 {
			ns, _ := strconv.ParseInt(f[1], 10, 64)
			most = max(most, time.Duration(ns))
		}
	}
	return most
}
