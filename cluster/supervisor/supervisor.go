package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/linux"
)

// Role is one process to keep.
type Role struct {
	Name string
	// Args behind the executable's name.
	Args []string
	// Files are inherited as descriptors 3, 4, ...
	Files []*os.File
	// Adopt finds a process that an earlier supervisor started and that must not be replaced, as a pidfd; nil =
	// none runs. It is asked before each start. May be nil.
	Adopt func() *os.File
}

// Options of a Supervisor.
type Options struct {
	// Exe is the executable of every role.
	Exe string
	// LogDir receives NAME.log of each role: its stdout and stderr.
	LogDir string
	Log    *slog.Logger
	// Changed is called, one call at a time, when a role started or ended. May be nil.
	Changed func([]Status)
}

// Status of a role.
type Status struct {
	Name     string    `json:"name"`
	PID      int       `json:"pid"` // 0 = not running
	Since    time.Time `json:"since"`
	Restarts int       `json:"restarts"`
	LastEnd  string    `json:"lastEnd,omitempty"` // how it ended last
}

const (
	// young is the age below which a death makes the next pause longer.
	young      = 10 * time.Second
	firstPause = 50 * time.Millisecond
	maxPause   = 5 * time.Second
)

// Supervisor keeps roles. Its methods are safe for concurrent use.
type Supervisor struct {
	o      Options
	reaper *reaper
	wg     sync.WaitGroup

	mu    sync.Mutex
	roles []*keeper // in the order of Start
}

// New makes this process the subreaper and starts reaping. Stop it with StopAll, then Close.
func New(o Options) (*Supervisor, error) {
	if err := linux.BecomeSubreaper(); err != nil {
		return nil, err
	}
	s := &Supervisor{o: o, reaper: newReaper()}
	s.wg.Go(s.reaper.run)
	return s, nil
}

// keeper is a role and its present process.
type keeper struct {
	role Role
	stop chan struct{} // closed: do not start again
	done chan struct{} // closed: it is over

	mu      sync.Mutex
	status  Status
	process *os.File // pidfd; nil = not running
}

// Start starts a role and keeps it running until Stop.
func (s *Supervisor) Start(r Role) {
	k := &keeper{role: r, stop: make(chan struct{}), done: make(chan struct{}), status: Status{Name: r.Name}}
	s.mu.Lock()
	s.roles = append(s.roles, k)
	s.mu.Unlock()
	s.wg.Go(func() { s.keep(k) })
}

func (s *Supervisor) keep(k *keeper) {
	defer close(k.done)
	pause := firstPause
	for {
		started := time.Now()
		how := s.once(k)
		k.mu.Lock()
		if k.process != nil {
			k.process.Close() // under the lock: end may be signalling it
		}
		k.process, k.status.PID, k.status.LastEnd = nil, 0, how
		k.mu.Unlock()
		s.changed()
		if time.Since(started) >= young {
			pause = firstPause
		}
		select {
		case <-k.stop:
			return
		default:
		}
		s.o.Log.Warn("role ended, starting it again", "role", k.role.Name, "how", how, "pause", pause.String())
		select {
		case <-k.stop:
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
		k.mu.Lock()
		k.status.Restarts++
		k.mu.Unlock()
	}
}

// once runs one process of a role, or watches an adopted one, to its end, and says how it ended.
func (s *Supervisor) once(k *keeper) string {
	if k.role.Adopt != nil {
		if p := k.role.Adopt(); p != nil {
			pid, since := identify(p)
			s.running(k, p, pid, since)
			if err := linux.WaitPID(context.Background(), p); err != nil {
				return err.Error()
			}
			return "ended"
		}
	}
	pid, exit, err := s.spawn(k.role)
	if err != nil {
		s.o.Log.Error("role does not start", "role", k.role.Name, "err", err)
		return err.Error()
	}
	p, err := linux.OpenPID(pid)
	if err != nil { // it has ended and was reaped already
		return describe(<-exit)
	}
	s.running(k, p, pid, time.Now())
	return describe(<-exit)
}

func (s *Supervisor) running(k *keeper, p *os.File, pid int, since time.Time) {
	k.mu.Lock()
	k.process, k.status.PID, k.status.Since = p, pid, since
	select {
	case <-k.stop: // Stop came while it was being started
		_ = linux.SignalPID(p, int(syscall.SIGTERM))
	default:
	}
	k.mu.Unlock()
	s.changed()
}

// spawn starts a process in its own group, so that Ctrl-C reaches the supervisor only.
func (s *Supervisor) spawn(r Role) (pid int, exit <-chan syscall.WaitStatus, err error) {
	logs, err := openLog(filepath.Join(s.o.LogDir, r.Name+".log"))
	if err != nil {
		return 0, nil, err
	}
	defer logs.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, nil, err
	}
	defer null.Close()
	return s.reaper.start(func() (*os.Process, error) {
		return os.StartProcess(s.o.Exe, append([]string{filepath.Base(s.o.Exe)}, r.Args...), &os.ProcAttr{
			Files: append([]*os.File{null, logs, logs}, r.Files...),
			Sys:   &syscall.SysProcAttr{Setpgid: true},
		})
	})
}

func describe(ws syscall.WaitStatus) string {
	if ws.Signaled() {
		return "killed by signal " + fmt.Sprint(int(ws.Signal())) + " (" + ws.Signal().String() + ")"
	}
	return fmt.Sprintf("exit status %d", ws.ExitStatus())
}

// Status of all roles in the order of Start.
func (s *Supervisor) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Status, len(s.roles))
	for i, k := range s.roles {
		k.mu.Lock()
		out[i] = k.status
		k.mu.Unlock()
	}
	return out
}

func (s *Supervisor) changed() {
	if s.o.Changed != nil {
		s.o.Changed(s.Status())
	}
}

// Leave forgets a role without ending its process; it is for a role that must outlive the supervisor.
func (s *Supervisor) Leave(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, k := range s.roles {
		if k.role.Name == name {
			s.roles = append(s.roles[:i:i], s.roles[i+1:]...)
			return
		}
	}
}

// StopAll ends all roles, the last started first: SIGTERM, and SIGKILL when grace has run out for one.
func (s *Supervisor) StopAll(grace time.Duration) {
	s.mu.Lock()
	roles := append([]*keeper(nil), s.roles...)
	s.mu.Unlock()
	for i := len(roles) - 1; i >= 0; i-- {
		roles[i].end(grace)
	}
}

func (k *keeper) end(grace time.Duration) {
	k.mu.Lock()
	close(k.stop)
	if k.process != nil {
		_ = linux.SignalPID(k.process, int(syscall.SIGTERM))
	}
	k.mu.Unlock()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-k.done:
		return
	case <-t.C:
	}
	k.mu.Lock()
	if k.process != nil {
		_ = linux.SignalPID(k.process, int(syscall.SIGKILL))
	}
	k.mu.Unlock()
	<-k.done
}

// Close stops reaping. Call it after StopAll; roles that were left run on.
func (s *Supervisor) Close() {
	s.reaper.close()
}
