package initd

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/files"
	"github.com/opendsec/dsec/guest/users"
	"github.com/opendsec/dsec/guest/wire"
)

// newWatch begins to serve Watch. Loop only.
func (g *watching) newWatch(op *fileOp) error {
	if g.watches >= maxWatches {
		return &wire.Error{Code: wire.CodeExhausted, Message: "watch: 1024 directories are being watched in this sandbox: end some"}
	}
	s := op.c.newStream(op.id, false)
	s.out.limit, s.credit = watchRing, wire.Window/2
	w := &watch{of: g, s: s, user: op.user, recursive: op.m.Follow, dirs: map[int32]string{}}
	s.onLoop = w.attend
	g.watches++
	op.watch = w
	return nil
}

// begin watches for the first time, as the user that the worker's thread is.
func (w *watch) begin(op *fileOp) error {
	g := w.of
	w.path = op.m.Path
	g.mu.Lock()
	err := g.open()
	if err == nil && !w.closed {
		g.all[w] = struct{}{}
	}
	g.mu.Unlock()
	if err != nil {
		return err
	}
	if err := w.look("", nil); err != nil {
		return err
	}
	g.i.call(func() {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		if w.s.gone {
			return
		}
		w.s.c.reply(w.s.id, nil)
		w.told = true
		w.s.post()
	})
	return nil
}

// refuse answers a request that could not begin; it is closed already. Loop only.
func (w *watch) refuse(err *wire.Error) {
	w.s.mu.Lock()
	gone := w.s.gone
	w.s.onLoop = nil
	if !gone {
		w.s.forget()
	}
	w.s.mu.Unlock()
	if !gone {
		w.s.c.fail(w.s.id, err)
	}
}

// look adds a directory, and with recursive what lies beneath. entry may be nil.
func (w *watch) look(rel string, entry func(rel string, dir bool)) error {
	// The kernel is told of a directory by a path, and no path of the sandbox's own is to be trusted: this thread goes there.
	// Threads share their working directory until one says otherwise; workers' threads are never anything else.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	defer unix.Chdir("/")
	return files.Directories(w.path, rel, w.recursive, func(fd int, rel string) error {
		if err := unix.Fchdir(fd); err != nil {
			if rel == "" {
				return &wire.Error{Code: wire.CodePermission, Message: "watch " + w.path + ": " + err.Error()}
			}
			return nil // not the user's to enter
		}
		return w.of.add(w, rel)
	}, entry)
}

// attend is called on the loop when something changed: the edge has gone, or there is room again.
func (w *watch) attend() {
	g := w.of
	w.s.mu.Lock()
	gone := w.s.gone
	if gone {
		w.s.in.free()
	}
	w.s.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if gone {
		w.close()
	} else if w.lost {
		w.lost = false
		w.lose()
	}
}

// close forgets all directories. Loop only, of.mu is held.
func (w *watch) close() {
	if w.closed {
		return
	}
	w.closed = true
	g := w.of
	g.watches--
	for wd := range w.dirs {
		g.drop(w, wd)
	}
	delete(g.all, w)
}

// end closes it and tells the edge why. Loop only, of.mu is held.
func (w *watch) end(err *wire.Error) {
	if w.closed {
		return
	}
	w.close()
	if !w.told {
		w.refuse(err)
		return
	}
	w.s.mu.Lock()
	w.s.onLoop = nil
	w.s.mu.Unlock()
	w.s.end(err)
}

// happened tells of one event of a directory. Loop only, of.mu is held.
func (w *watch) happened(wd int32, mask uint32, name string) {
	rel := w.dirs[wd]
	if mask&(unix.IN_IGNORED|unix.IN_MOVE_SELF) != 0 {
		if rel == "" {
			w.end(&wire.Error{Code: wire.CodeNotFound, Message: "watch " + w.path + ": the directory was removed or moved away"})
		} else if mask&unix.IN_IGNORED != 0 {
			w.of.forget(w, wd)
		}
		return
	}
	if name == "" {
		return // of the directory itself: its parent tells it
	}
	e := wire.WatchEvent{Dir: mask&unix.IN_ISDIR != 0, Name: name}
	if rel != "" {
		e.Name = rel + "/" + name
	}
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		e.Kind = wire.WatchCreated
	case mask&unix.IN_MOVED_FROM != 0:
		e.Kind = wire.WatchMoved
	case mask&unix.IN_DELETE != 0:
		e.Kind = wire.WatchRemoved
	case mask&unix.IN_MODIFY != 0:
		e.Kind = wire.WatchWritten
	case mask&unix.IN_ATTRIB != 0:
		e.Kind = wire.WatchAttributes
	default:
		return
	}
	w.emit(&e)
	if !e.Dir || !w.recursive {
		return
	}
	switch e.Kind {
	case wire.WatchMoved:
		for wd, rel := range w.dirs {
			if rel == e.Name || strings.HasPrefix(rel, e.Name+"/") {
				w.of.drop(w, wd)
			}
		}
	case wire.WatchCreated:
		if len(w.of.walks) >= maxWalks {
			w.again = true
			w.lose()
			return
		}
		w.of.walks = append(w.of.walks, walk{w, e.Name})
	}
}

// emit puts an event into the stream, or notes that there was no room. of.mu is held.
func (w *watch) emit(e *wire.WatchEvent) {
	if w.lost || w.closed {
		return
	}
	if len(e.Name) > wire.MaxWatchName {
		w.lose()
		return
	}
	if !w.put(e) {
		w.lost = true
	}
}

// lose tells that events were left out. of.mu is held.
func (w *watch) lose() {
	if !w.lost && !w.closed {
		w.lost = !w.put(&wire.WatchEvent{Kind: wire.WatchLost})
	}
}

// put puts an event whole or not at all.
func (w *watch) put(e *wire.WatchEvent) bool {
	b := e.Append(make([]byte, 0, 64+len(e.Name)))
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return true
	}
	if s.out.len()+len(b) > watchRing {
		return false
	}
	if n := s.out.put(b); n < len(b) {
		// No memory for all of it: what went in is an event's beginning, and must not stay.
		s.out.end -= int64(n)
		return false
	}
	if w.told {
		s.post()
	}
	return true
}

// walk looks into new directories, and tells what it finds there: it may have come before the directory was watched. Some of
// it is told twice. Called on a worker.
func (g *watching) walk() {
	defer files.Become(0, 0, nil)
	for {
		g.mu.Lock()
		next := walk{}
		if len(g.walks) > 0 {
			next, g.walks = g.walks[0], g.walks[1:]
		} else {
			for w := range g.all {
				if w.again {
					w.again = false
					next.w = w
					break
				}
			}
		}
		g.mu.Unlock()
		if next.w == nil {
			break
		}
		g.lookInto(next)
	}
	g.i.call(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.walking = false
		g.walkOn() // more may have come since
	})
}

func (g *watching) lookInto(next walk) {
	w := next.w
	_ = files.Become(0, 0, nil) // for the look at /etc/passwd
	u, err := users.Lookup(w.user)
	if err == nil {
		err = files.Become(u.UID, u.GID, u.Groups)
	}
	if err == nil {
		err = w.look(next.rel, func(rel string, dir bool) {
			g.mu.Lock()
			w.emit(&wire.WatchEvent{Kind: wire.WatchCreated, Dir: dir, Name: rel})
			g.mu.Unlock()
		})
	}
	if e, ok := err.(*wire.Error); ok && e.Code == wire.CodeExhausted {
		g.mu.Lock()
		w.lose()
		g.mu.Unlock()
	}
}
