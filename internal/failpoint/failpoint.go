// Package failpoint lets tests stop a process, or make a step fail, at a named place. It is compiled in and
// costs one atomic load while no point is set.
//
// The environment variable DSEC_FAILPOINTS sets points for a process, separated by commas:
//
//	DSEC_FAILPOINTS="create.after_journal=kill,create.after_ready=error@3"
//
// Actions: kill (SIGKILL to the process itself), error (Hit returns ErrInjected), wait=DURATION (Hit takes that
// long); @N acts on the N-th hit only.
package failpoint

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// EnvVar is the environment variable that is read at the start of a process.
const EnvVar = "DSEC_FAILPOINTS"

// ErrInjected is what a point with the action error returns.
var ErrInjected = errors.New("injected by a failpoint")

type point struct {
	action string // kill, error, wait
	wait   time.Duration
	nth    int64 // 0 = every hit
	hits   atomic.Int64
}

var (
	active atomic.Pointer[map[string]*point]
	mu     sync.Mutex // serialises changes of active
)

func init() {
	if v := os.Getenv(EnvVar); v != "" {
		if err := Set(v); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", EnvVar, err)
			os.Exit(2)
		}
	}
}

// Hit acts as the point of this name was set to; nil when it was not.
func Hit(name string) error {
	points := active.Load()
	if points == nil {
		return nil
	}
	return (*points)[name].hit(name)
}

func (p *point) hit(name string) error {
	if p == nil {
		return nil
	}
	if n := p.hits.Add(1); p.nth != 0 && n != p.nth {
		return nil
	}
	switch p.action {
	case "kill":
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Kill()
		}
		select {} // SIGKILL is on its way
	case "wait":
		time.Sleep(p.wait)
		return nil
	}
	return fmt.Errorf("%s: %w", name, ErrInjected)
}

// Set replaces all points by those of the text (see the package comment); "" clears them.
func Set(text string) error {
	mu.Lock()
	defer mu.Unlock()
	points := map[string]*point{}
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		name, p, err := parse(item)
		if err != nil {
			return err
		}
		points[name] = p
	}
	if len(points) == 0 {
		active.Store(nil)
		return nil
	}
	active.Store(&points)
	return nil
}

func parse(item string) (string, *point, error) {
	name, action, ok := strings.Cut(item, "=")
	if !ok || name == "" {
		return "", nil, fmt.Errorf("failpoint %q: want name=action", item)
	}
	p := &point{}
	if before, n, found := strings.Cut(action, "@"); found {
		nth, err := strconv.ParseInt(n, 10, 64)
		if err != nil || nth < 1 {
			return "", nil, fmt.Errorf("failpoint %q: want a count from 1 after @", item)
		}
		action, p.nth = before, nth
	}
	if d, found := strings.CutPrefix(action, "wait="); found {
		wait, err := time.ParseDuration(d)
		if err != nil {
			return "", nil, fmt.Errorf("failpoint %q: %w", item, err)
		}
		action, p.wait = "wait", wait
	}
	switch action {
	case "kill", "error", "wait":
		p.action = action
		return name, p, nil
	}
	return "", nil, fmt.Errorf("failpoint %q: unknown action %q (kill, error, wait=DURATION)", item, action)
}
