package aether

import (
	"context"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/guest/wire"
)

// writer serialises frames. Requests are written by their callers, one at a time; what is only queued (credit,
// acknowledgements) goes out before the next request or by a goroutine that lives as long as there is some.
type writer struct {
	c    *Conn
	turn chan struct{} // holds one token while nobody writes

	mu       sync.Mutex
	frames   []byte // small frames
	acks     map[string]int64
	releases []string
	flushing bool
	over     bool // nobody starts one any more: the end waits for those there are

	releasing bool // a timer will look at releases
	flushers  sync.WaitGroup
}

func (w *writer) init(c *Conn) {
	w.c, w.turn = c, make(chan struct{}, 1)
	w.turn <- struct{}{}
	w.acks = make(map[string]int64)
}

// request writes a frame, with descriptors beside it.
func (w *writer) request(ctx context.Context, kind wire.Kind, id uint32, payload func([]byte) []byte, fds []*os.File) error {
	b := frames.Get().(*[]byte)
	defer func() {
		if cap(*b) <= 64<<10 {
			frames.Put(b)
		}
	}()
	f := wire.AppendHeader((*b)[:0], kind, id, len(fds), 0)
	if payload != nil {
		f = payload(f)
	}
	f = wire.Finish(f, 0)
	*b = f
	if len(f) > wire.MaxFrame+4 {
		return &wire.Error{Code: wire.CodeInvalid, Message: "the request is too long (2 MiB at most)"}
	}
	select {
	case <-w.turn:
	case <-ctx.Done():
		return ctx.Err()
	case <-w.c.done:
		return w.c.reason()
	}
	defer func() { w.turn <- struct{}{} }()
	return w.write(f, fds)
}

var frames = sync.Pool{New: func() any { return new([]byte) }}

// write writes what is queued and then f. The turn is held. A frame that was begun must be finished, so this
// does not end with a context, but with the connection.
func (w *writer) write(f []byte, fds []*os.File) error {
	w.c.nc.SetWriteDeadline(time.Now().Add(WriteLimit))
	err := w.writeAll(w.take())
	if err == nil {
		if len(fds) > 0 {
			f, err = w.writeWith(f, fds)
		}
		if err == nil {
			err = w.writeAll(f)
		}
	}
	if err != nil {
		w.c.fail(err)
		return w.c.reason()
	}
	return nil
}

func (w *writer) writeAll(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_, err := w.c.nc.Write(b)
	return err
}

// writeWith sends the beginning of f with descriptors and returns its rest.
func (w *writer) writeWith(f []byte, fds []*os.File) ([]byte, error) {
	uc, ok := w.c.nc.(*net.UnixConn)
	if !ok {
		return nil, os.ErrInvalid
	}
	raw := make([]int, len(fds))
	for i, fd := range fds {
		raw[i] = int(fd.Fd())
	}
	n, _, err := uc.WriteMsgUnix(f, syscall.UnixRights(raw...), nil)
	runtime.KeepAlive(fds)
	return f[max(n, 0):], err
}

// take returns the queued frames.
func (w *writer) take() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.frames
	w.frames = nil
	for name, off := range w.acks {
		b = appendControl(b, wire.KindAck, &wire.Control{Name: name, Offset: off})
	}
	clear(w.acks)
	for _, name := range w.releases {
		b = appendControl(b, wire.KindRelease, &wire.Control{Name: name})
	}
	w.releases = nil
	return b
}

func appendControl(b []byte, kind wire.Kind, m *wire.Control) []byte {
	b, at := wire.Begin(b, kind, 0)
	return wire.Finish(m.Append(b), at)
}

// queue adds a small frame. Only frames whose number is bounded may be queued: credit and resets of streams.
func (w *writer) queue(kind wire.Kind, id uint32, payload func([]byte) []byte) {
	w.mu.Lock()
	var at int
	w.frames, at = wire.Begin(w.frames, kind, id)
	if payload != nil {
		w.frames = payload(w.frames)
	}
	w.frames = wire.Finish(w.frames, at)
	w.kick()
}

// ack and release queue their frame. Acknowledgements of one command are merged.
func (w *writer) ack(command string, offset int64) {
	w.mu.Lock()
	if old, ok := w.acks[command]; !ok || old < offset {
		w.acks[command] = offset
	}
	w.kick()
}

// release is in no hurry: it goes out with the next request, when several are at hand, or after a while. Sent at
// once it would wake dsec-init while the command's result is on its way to who waits for it.
func (w *writer) release(command string) {
	w.mu.Lock()
	w.releases = append(w.releases, command)
	if len(w.releases) >= manyReleases {
		w.kick()
		return
	}
	if !w.releasing {
		w.releasing = true
		time.AfterFunc(releaseAfter, func() {
			w.mu.Lock()
			w.releasing = false
			if len(w.releases) == 0 {
				w.mu.Unlock()
				return
			}
			w.kick()
		})
	}
	w.mu.Unlock()
}

const (
	manyReleases = 16
	releaseAfter = 20 * time.Millisecond
)

// kick starts the flusher when there is none. mu is held, and released.
func (w *writer) kick() {
	start := !w.flushing && !w.over && w.c.live()
	if start {
		w.flushing = true
		w.flushers.Add(1)
	}
	w.mu.Unlock()
	if start {
		go w.flush()
	}
}

// wait waits for the flusher of a connection that has ended.
func (w *writer) wait() {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.flushers.Wait()
}

func (w *writer) flush() {
	defer w.flushers.Done()
	for {
		select {
		case <-w.turn:
		case <-w.c.done:
			return
		}
		err := w.write(nil, nil)
		w.turn <- struct{}{}
		w.mu.Lock()
		if err != nil || len(w.frames) == 0 && len(w.acks) == 0 && len(w.releases) == 0 {
			w.flushing = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
	}
}

func (c *Conn) live() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}
