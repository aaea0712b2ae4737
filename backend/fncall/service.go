package fncall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opendsec/dsec/guest/cell"
	"github.com/opendsec/dsec/policy/confine"
	"github.com/opendsec/dsec/sandbox"
)

// Config of a Service.
type Config struct {
	StateDir   string // of the service alone
	Name       string // of its control groups: unique on the machine
	InitBinary string // dsec-init
	Resolve    Resolve
	Bases      map[string]string // runtime -> base; those that are not named have none
	// Faults tells whether the store failed a reader of the layers in a span of time; nil = it cannot.
	Faults func(layers []string, from, to time.Time) bool
	Log    *slog.Logger

	Parallel   int           // calls that run at once; 0 = four for each processor; beyond them one of each project that has none, up to as many again
	MaxWaiting int           // calls that wait; 0 = 8192
	MaxPerKey  int           // of one key; 0 = half of MaxWaiting
	Idle       time.Duration // a runtime's worker ends when no call came for so long; 0 = 5 minutes
}

// Service runs calls.
type Service struct {
	cfg       Config
	groups    *groups
	line      *line
	artifacts *artifacts
	recent    *recent
	filter    []byte
	stop      chan struct{}
	wg        sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	runtimes map[string]*runtimeState
	retired  []*runtimeState // over bases that their runtimes have no more; with calls, or waiting to be tidied up
	uids     []bool          // ranges of ids in use
}

// firstUID is the first host id of calls: above those of sandboxes. Each worker has a range of them.
const (
	firstUID = 1_900_000_000
	uidRange = 1024
)

// New opens the service on its state, having removed what an earlier one left. No worker is started before it is needed.
func New(cfg Config) (*Service, error) {
	if cfg.Parallel == 0 {
		cfg.Parallel = 4 * runtime.NumCPU()
	}
	cfg.Parallel = min(cfg.Parallel, uidRange/4)
	if cfg.MaxWaiting == 0 {
		cfg.MaxWaiting = 8192
	}
	if cfg.MaxPerKey == 0 {
		cfg.MaxPerKey = cfg.MaxWaiting / 2
	}
	if cfg.Idle == 0 {
		cfg.Idle = 5 * time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	s := &Service{cfg: cfg, line: newLine(cfg.Parallel, cfg.Parallel, cfg.MaxWaiting, cfg.MaxPerKey), recent: newRecent(),
		stop: make(chan struct{}), runtimes: map[string]*runtimeState{}}
	if err := os.MkdirAll(filepath.Join(cfg.StateDir, "stage"), 0o700); err != nil {
		return nil, fmt.Errorf("function calls: %w", err)
	}
	var err error
	if s.artifacts, err = openArtifacts(filepath.Join(cfg.StateDir, "artifacts")); err != nil {
		return nil, fmt.Errorf("function calls: %w", err)
	}
	if s.filter, err = confine.Program(callRules()); err != nil {
		return nil, fmt.Errorf("function calls: %w", err)
	}
	if s.groups, err = openGroups(cfg.StateDir, cfg.Name, cfg.Parallel); err != nil {
		return nil, fmt.Errorf("function calls: %w", err)
	}
	s.wg.Go(s.tidy)
	return s, nil
}

// callRules are the rules of sandboxes, and no sockets but Unix ones: calls have no network. Nor may they watch files:
// the calls of a runtime read the same files of its base, and would see which ones their neighbours open.
func callRules() []confine.Rule {
	rules := slices.DeleteFunc(confine.Default(), func(r confine.Rule) bool { return r.Call == "socket" || r.Call == "socketpair" })
	const eafnosupport, afUnix = 97, 1
	for _, c := range []string{"socket", "socketpair"} {
		rules = append(rules, confine.Rule{Call: c, Errno: eafnosupport, Args: []confine.Arg{{Index: 0, Mask: ^uint32(0), Values: []uint32{afUnix}, Not: true}}})
	}
	const enospc, einval, dirNotify = 28, 22, 1026
	return append(rules,
		confine.Rule{Call: "inotify_add_watch", Errno: enospc}, // as when the watches are used up, where programs ask from time to time instead
		confine.Rule{Call: "fcntl", Errno: einval, Args: []confine.Arg{{Index: 1, Mask: ^uint32(0), Values: []uint32{dirNotify}}}})
}

// Close ends all workers and removes what they had.
func (s *Service) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.stop)
	states := s.states()
	s.mu.Unlock()
	s.wg.Wait()
	for _, r := range states {
		r.end()
	}
	return s.groups.close()
}

// states are those that may have a worker; s.mu is held.
func (s *Service) states() []*runtimeState {
	return slices.AppendSeq(slices.Clone(s.retired), maps.Values(s.runtimes))
}

// runtimeState is one runtime's worker, and its statistics.
type runtimeState struct {
	s    *Service
	def  Definition
	stat stats

	mu     sync.Mutex // starting and ending
	worker *worker
	env    *Environment
	uids   int
	used   time.Time
	users  int
}

// state returns a runtime's state. Errors: ErrNotFound, ErrUnsupported; ErrFailedPrecondition when it has no base.
func (s *Service) state(name string) (*runtimeState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("function calls: %w: the node is shutting down", sandbox.ErrUnavailable)
	}
	if r := s.runtimes[name]; r != nil {
		return r, nil
	}
	def, err := Builtin(name)
	if err != nil {
		return nil, err
	}
	if def.Base = s.cfg.Bases[name]; def.Base == "" {
		return nil, fmt.Errorf("runtime %s: %w: it has no base on this node: `dsec runtime set %s --base IMAGE`, or `dsec up --opt fncall=%s=IMAGE`",
			name, sandbox.ErrFailedPrecondition, name, name)
	}
	r := &runtimeState{s: s, def: def, uids: -1}
	s.runtimes[name] = r
	return r, nil
}

// SetBase says over which base a runtime is; "" takes it away. Calls that run go on over the old one.
func (s *Service) SetBase(name, base string) error {
	if _, err := Builtin(name); err != nil {
		return err
	}
	s.mu.Lock()
	if s.cfg.Bases == nil {
		s.cfg.Bases = map[string]string{}
	}
	defer s.mu.Unlock()
	if s.cfg.Bases[name] == base {
		return nil
	}
	s.cfg.Bases[name] = base
	if old := s.runtimes[name]; old != nil {
		delete(s.runtimes, name)
		s.retired = append(s.retired, old)
	}
	return nil
}

// take returns the runtime's worker, starting it if there is none; give must follow.
func (r *runtimeState) take(ctx context.Context) (*worker, *Environment, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.worker != nil {
		r.worker.mu.Lock()
		dead := r.worker.dead
		r.worker.mu.Unlock()
		if dead != nil {
			r.stopWorker()
		}
	}
	if r.worker == nil {
		if err := r.startWorker(ctx); err != nil {
			return nil, nil, err
		}
	}
	r.users++
	r.used = time.Now()
	// Twice the calls that run: while one cell is taken down and made anew another is ready.
	r.worker.want(min(max(2, 2*r.users), 2*r.s.cfg.Parallel+2))
	return r.worker, r.env, nil
}

func (r *runtimeState) give() {
	r.mu.Lock()
	r.users--
	r.used = time.Now()
	r.mu.Unlock()
}

// startWorker starts the worker; r.mu is held.
func (r *runtimeState) startWorker(ctx context.Context) error {
	env, err := r.environment(ctx)
	if err != nil {
		return err
	}
	r.s.mu.Lock()
	if r.s.closed {
		r.s.mu.Unlock()
		return fmt.Errorf("function calls: %w: the node is shutting down", sandbox.ErrUnavailable)
	}
	n := slices.Index(r.s.uids, false)
	if n < 0 {
		n = len(r.s.uids)
		r.s.uids = append(r.s.uids, false)
	}
	r.s.uids[n] = true
	if r.s.runtimes[r.def.Name] != r && !slices.Contains(r.s.retired, r) {
		r.s.retired = append(r.s.retired, r) // it was thought to be through
	}
	r.s.mu.Unlock()
	r.uids = n
	g, err := r.s.groups.make(r.groupName())
	if err == nil {
		r.worker, err = startWorker(r.s.cfg.InitBinary, &cell.Config{
			Stage: filepath.Join(r.s.cfg.StateDir, "stage"), Layers: env.Layers, Cache: r.s.artifacts.dir, Groups: g,
			UIDBase: uint32(firstUID + n*uidRange), Filter: r.s.filter,
		}, func(msg string) { r.s.cfg.Log.Error("function calls", "runtime", r.def.Name, "worker", msg) })
	}
	if err != nil {
		r.stopWorker()
		return sandbox.NewFailure(sandbox.KindInternal, "start runtime %s: %v", r.def.Name, err)
	}
	r.env = env
	return nil
}

// environment resolves the runtime's base.
func (r *runtimeState) environment(ctx context.Context) (*Environment, error) {
	env, err := r.s.cfg.Resolve(ctx, r.def.Base)
	if err != nil {
		return nil, fmt.Errorf("base of runtime %s: %w", r.def.Name, err)
	}
	return env, nil
}

func (r *runtimeState) groupName() string { return fmt.Sprintf("%s-%d", r.def.Name, r.uids) }

// stopWorker ends the worker and what it had; r.mu is held.
func (r *runtimeState) stopWorker() {
	if r.worker != nil {
		r.worker.close()
		r.worker = nil
	}
	if r.uids >= 0 {
		if err := r.s.groups.remove(r.groupName()); err != nil {
			r.s.cfg.Log.Error("groups of a worker are left for the next sweep", "runtime", r.def.Name, "err", err)
			return // its range stays taken
		}
		r.s.mu.Lock()
		r.s.uids[r.uids] = false
		r.s.mu.Unlock()
		r.uids = -1
	}
}

// end ends the runtime once its calls have ended, or soon.
func (r *runtimeState) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopWorker()
}

// tidy ends workers that nobody used for long.
func (s *Service) tidy() {
	t := time.NewTicker(min(max(s.cfg.Idle/10, 10*time.Millisecond), 5*time.Second))
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
		}
		s.mu.Lock()
		all, retired := s.states(), slices.Clone(s.retired)
		s.mu.Unlock()
		for _, r := range all {
			old := slices.Contains(retired, r)
			r.mu.Lock()
			if r.users == 0 && (old || r.worker != nil && time.Since(r.used) > s.cfg.Idle) {
				r.stopWorker()
				if old {
					s.mu.Lock()
					s.retired = slices.DeleteFunc(s.retired, func(x *runtimeState) bool { return x == r })
					s.mu.Unlock()
				}
			}
			r.mu.Unlock()
		}
	}
}

// execute runs one call of a runtime in its turn.
func (r *runtimeState) execute(ctx context.Context, project string, c *cell.Call) (*cell.Reply, error) {
	if err := r.s.line.enter(ctx, project); err != nil {
		if errors.Is(err, sandbox.ErrExhausted) {
			r.stat.refuse()
		}
		return nil, err
	}
	defer r.s.line.leave(project)
	// A worker that ends under calls is the platform's doing: they are run again, once.
	var err error
	for range 2 {
		var w *worker
		var env *Environment
		if w, env, err = r.take(ctx); err != nil {
			return nil, err
		}
		full := *c
		full.Env = environ(r.def.Defaults, env.Env, r.def.Env, c.Env)
		start := time.Now()
		var p *cell.Reply
		p, err = w.call(ctx, &full)
		r.give()
		if err == nil {
			if bad := p.End != cell.Exited || p.Code != 0; bad && r.s.cfg.Faults != nil && r.s.cfg.Faults(env.Digests, start, time.Now()) {
				// What a program does after a failed read is not its doing.
				p.End, p.Message = cell.Broken, ""
				r.stat.add(p, time.Since(start))
				return nil, sandbox.NewFailure(sandbox.KindStoreFault, "the store failed a reader of the runtime's base while the call ran")
			}
			r.stat.add(p, time.Since(start))
			return p, nil
		}
	}
	return nil, sandbox.NewFailure(sandbox.KindInternal, "%v", err)
}

// environ merges environment variables; the last of a name wins.
func environ(lists ...[]string) []string {
	out := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin", "HOME=/call/work", "TMPDIR=/tmp", "LANG=C.UTF-8"}
	for _, l := range lists {
		for _, v := range l {
			name, _, _ := strings.Cut(v, "=")
			at := slices.IndexFunc(out, func(o string) bool { return strings.HasPrefix(o, name+"=") })
			if at >= 0 {
				out[at] = v
			} else {
				out = append(out, v)
			}
		}
	}
	return out
}
