package initd

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/nursery"
	"github.com/opendsec/dsec/guest/stage"
	"github.com/opendsec/dsec/guest/users"
	"github.com/opendsec/dsec/guest/wire"
)

// Bounds of one dsec-init.
const (
	maxLive     = 1024     // commands that have not ended
	maxKnown    = 4096     // commands not released
	maxSessions = 128      //
	maxOutput   = 16 << 20 // bytes of output held, beyond a page for each command
	maxStreams  = 32 << 20 // bytes of streams held, beyond a page for each
	maxWaiting  = 8        // connections that have not said hello
)

// Init is dsec-init: one goroutine, the loop, owns all of it but what workers share under a lock.
type Init struct {
	poll    *poller
	timers  *timers
	nursery *nursery.Nursery
	stage   *stage.Stage
	scratch []byte // mapped; for one frame, one read

	listen      int
	listenAgain timer
	current     *conn   // the edge that said hello with the greatest epoch
	waiting     []*conn // not yet said hello
	epoch       uint64
	dirty       []*conn // to flush

	system  bool // it works in a whole system, and is not its first process
	claimed bool
	claim   wire.Claim
	users   users.Cache

	commands map[string]*command
	live     int
	procs    map[int]process
	early    map[int]unix.WaitStatus // ends of children that the nursery has not reported yet
	starts   []*launch               // waiting for the nursery; the first is being made
	watchdog timer
	sessions map[string]*session
	held     bool      // the sandbox is frozen: timeouts do not run
	drains   []*outlet // discarded outputs of commands that have ended
	trimmer  timer
	busy     bool // since the trimmer's last look

	outputMemory budget
	streamMemory budget

	workers     workers
	fileStreams int // that occupy a worker
	ports       int
	watching    watching

	mu    sync.Mutex
	posts []*stream // with news for the loop
	calls []func()  // to run on the loop
	wake  int       // eventfd
}

// process is told how its process ended.
type process interface {
	exited(status unix.WaitStatus)
}

// fdWatcher makes a function a watcher.
type fdWatcher func()

func (f fdWatcher) ready(uint32) { f() }

func newInit() (*Init, error) {
	i := &Init{
		commands: make(map[string]*command),
		procs:    make(map[int]process),
		early:    make(map[int]unix.WaitStatus),
		sessions: make(map[string]*session),
	}
	i.outputMemory.max, i.streamMemory.max = maxOutput, maxStreams
	i.workers.i, i.watching.i = i, i
	var err error
	if i.scratch, err = unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return nil, err
	}
	if i.poll, err = newPoller(); err != nil {
		return nil, err
	}
	i.poll.alone = i.workers.idling
	if i.timers, err = newTimers(i.poll); err != nil {
		return nil, err
	}
	if i.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, err
	}
	return i, i.poll.add(i.wake, unix.EPOLLIN, fdWatcher(i.drainPosts))
}

// run is the loop. It returns only when the poller fails.
func (i *Init) run() error {
	for {
		if err := i.poll.poll(); err != nil {
			return err
		}
		for len(i.dirty) > 0 {
			list := i.dirty
			i.dirty = nil
			again := false
			for _, c := range list {
				c.dirty = false
				c.flush()
				again = again || c.dirty
			}
			if again {
				// A burst was sent and there is more: look at the other descriptors first.
				i.nudge()
				break
			}
		}
	}
}

// post and call hand something to the loop from any goroutine.
func (i *Init) post(s *stream) {
	i.mu.Lock()
	i.posts = append(i.posts, s)
	first := len(i.posts) == 1
	i.mu.Unlock()
	if first {
		i.nudge()
	}
}

func (i *Init) call(f func()) {
	i.mu.Lock()
	i.calls = append(i.calls, f)
	i.mu.Unlock()
	i.nudge()
}

func (i *Init) nudge() {
	one := [8]byte{1}
	_, _ = rawWrite(i.wake, one[:])
}

func (i *Init) drainPosts() {
	var b [8]byte
	_, _ = rawRead(i.wake, b[:])
	i.mu.Lock()
	posts, calls := i.posts, i.calls
	i.posts, i.calls = nil, nil
	i.mu.Unlock()
	for _, s := range posts {
		s.attend()
	}
	for _, f := range calls {
		f()
	}
}

// reap collects every child that has ended: commands, and the orphans that a PID 1 inherits.
func (i *Init) reap() {
	i.collect() // a start that is complete comes before its end
	for {
		pid, ws, err := rawReap()
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if !ws.Exited() && !ws.Signaled() {
			continue
		}
		switch p := i.procs[pid]; {
		case p != nil:
			delete(i.procs, pid)
			p.exited(ws)
		case i.nursery.Busy() && i.nursery.ForkedPID() == pid:
			i.early[pid] = ws
		}
	}
}

// watchChildren registers the descriptor that counts SIGCHLD, and the nursery's.
func (i *Init) watchChildren(childFD int) error {
	err := i.poll.add(childFD, unix.EPOLLIN, fdWatcher(func() {
		var b [8]byte
		_, _ = rawRead(childFD, b[:])
		i.reap()
	}))
	if err != nil {
		return err
	}
	return i.poll.add(i.nursery.FD(), unix.EPOLLIN, fdWatcher(i.collect))
}

// fatal writes the one line that dsec-init ever logs and ends it.
func fatal(what string, err error) {
	_, _ = os.Stderr.WriteString("dsec-init: " + what + ": " + err.Error() + "\n")
	os.Exit(1)
}
