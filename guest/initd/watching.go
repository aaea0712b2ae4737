package initd

import (
	"encoding/binary"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// Bounds of watching, of all watches of a sandbox together unless said.
const (
	maxWatches    = 1024     // at once
	maxWatched    = 8192     // directories
	maxWatchBytes = 1 << 20  // of their names
	maxWalks      = 4096     // directories that wait to be looked into
	watchRing     = 16 << 10 // bytes of events held for one; more are left out
	watchMask     = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB |
		unix.IN_MOVE_SELF | unix.IN_ONLYDIR
)

// watching is the one inotify instance of a sandbox: there are few of them for each user, and the sandbox's programs
// want some. The loop reads it; workers add directories.
type watching struct {
	i       *Init
	watches int // loop only: open ones
	walking bool

	mu    sync.Mutex
	fd    int // inotify; 0 = not made yet
	dirs  map[int32]map[*watch]struct{}
	all   map[*watch]struct{}
	count int // directories, each for every watch of it
	bytes int
	walks []walk
}

// walk is a directory that appeared and is to be looked into.
type walk struct {
	w   *watch
	rel string
}

// watch is one request to watch.
type watch struct {
	of        *watching
	s         *stream
	path      string // absolute, as the user may go it
	user      string
	recursive bool
	told      bool // loop only: the answer was sent

	// Guarded by of.mu.
	closed bool
	lost   bool             // events were left out, and this is not told yet
	again  bool             // directories may be missing: look at all of them anew
	dirs   map[int32]string // names relative to path, by watch descriptor
}

// open makes the instance. mu is held.
func (g *watching) open() error {
	if g.fd != 0 {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return &wire.Error{Code: wire.CodeExhausted, Message: "watch: the sandbox has used up its inotify instances: " + err.Error()}
	}
	g.fd, g.dirs, g.all = fd, map[int32]map[*watch]struct{}{}, map[*watch]struct{}{}
	g.i.call(func() { _ = g.i.poll.add(fd, unix.EPOLLIN, g) })
	return nil
}

var errTooManyWatched = &wire.Error{Code: wire.CodeExhausted, Message: "watch: too many directories are watched in this sandbox; watch fewer, or not what lies beneath"}

// add makes the kernel watch the thread's working directory as rel of w. Called on a worker.
func (g *watching) add(w *watch, rel string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.closed {
		return errGone
	}
	if g.count >= maxWatched || g.bytes+len(rel) > maxWatchBytes || len(rel) > wire.MaxWatchName {
		return errTooManyWatched
	}
	n, err := unix.InotifyAddWatch(g.fd, ".", watchMask)
	if err == unix.ENOSPC || err == unix.ENOMEM {
		return errTooManyWatched
	}
	if err != nil {
		return err
	}
	wd := int32(n)
	g.forget(w, wd) // it had another name before
	if g.dirs[wd] == nil {
		g.dirs[wd] = map[*watch]struct{}{}
	}
	g.dirs[wd][w] = struct{}{}
	w.dirs[wd] = rel
	g.count++
	g.bytes += len(rel)
	return nil
}

// forget takes a directory from a watch. mu is held.
func (g *watching) forget(w *watch, wd int32) {
	rel, ok := w.dirs[wd]
	if !ok {
		return
	}
	delete(w.dirs, wd)
	delete(g.dirs[wd], w)
	g.count--
	g.bytes -= len(rel)
}

// drop is forget; what nobody watches any more the kernel need not watch either. mu is held.
func (g *watching) drop(w *watch, wd int32) {
	g.forget(w, wd)
	if users, ok := g.dirs[wd]; ok && len(users) == 0 {
		delete(g.dirs, wd)
		_, _ = unix.InotifyRmWatch(g.fd, uint32(wd))
	}
}

// ready reads what the kernel has to say.
func (g *watching) ready(uint32) {
	buf := g.i.scratch[:32<<10]
	n, err := rawRead(g.fd, buf)
	if err != nil || n <= 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		wd, mask, size := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		if size > len(b)-unix.SizeofInotifyEvent {
			break
		}
		name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size]), "\x00")
		b = b[unix.SizeofInotifyEvent+size:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			for w := range g.all {
				w.again = w.recursive
				w.lose()
			}
			continue
		}
		for w := range g.dirs[wd] {
			w.happened(wd, mask, name)
		}
		if mask&unix.IN_IGNORED != 0 {
			delete(g.dirs, wd)
		}
	}
	g.walkOn()
}

// walkOn sees to it that a worker looks into new directories. Loop only, mu is held.
func (g *watching) walkOn() {
	if g.walking {
		return
	}
	due := len(g.walks) > 0
	for w := range g.all {
		due = due || w.again
	}
	if due {
		// When no worker can be had now, the next event tries again.
		g.walking = g.i.workers.do(g.walk)
	}
}
