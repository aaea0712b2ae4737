package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/opendsec/dsec/internal/linux"
)

// events hands on what the programs tell. The ring and the channel are bounded: what finds no room is dropped and
// counted.
type events struct {
	out     chan Event
	lost    atomic.Uint64
	sources []io.Closer
	wg      sync.WaitGroup // of their readers

	mu     sync.Mutex // guards closed; out is sent to with it held
	closed bool
}

const (
	eventQueue = 4096
	look       = 500 * time.Millisecond // how late the news of an opened flow may be
)

func newEvents() *events {
	return &events{out: make(chan Event, eventQueue)}
}

func (e *engine) readEvents() (*events, error) {
	r, err := ringbuf.NewReader(e.k.Ring)
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	v := newEvents()
	v.from(r, func() { v.run(e, r) })
	return v, nil
}

// from has read run until the source is closed.
func (v *events) from(source io.Closer, read func()) {
	v.sources = append(v.sources, source)
	v.wg.Go(read)
}

func (v *events) run(e *engine, r *ringbuf.Reader) {
	var rec ringbuf.Record
	for {
		r.SetDeadline(time.Now().Add(look))
		if err := r.ReadInto(&rec); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				continue
			}
			if !errors.Is(err, ringbuf.ErrClosed) {
				e.log.Error("the datapath's events end", "err", err)
			}
			return
		}
		var w wireEvent
		if _, err := binary.Decode(rec.RawSample, binary.NativeEndian, &w); err != nil {
			v.lost.Add(1)
			continue
		}
		v.send(Event{Time: wall(w.Time), Slot: int(w.Slot), Kind: EventKind(w.Kind), Reason: Reason(w.Reason), Number: w.Protocol,
			Protocol: protocolOf(w.Protocol), LocalPort: w.LocalPort, Remote: netip.AddrPortFrom(w.Remote.addr(), w.RemotePort), Inbound: w.Inbound != 0})
	}
}

func (v *events) send(ev Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	select {
	case v.out <- ev:
	default:
		v.lost.Add(1)
	}
}

func (v *events) close() error {
	var errs []error
	for _, s := range v.sources {
		errs = append(errs, s.Close())
	}
	v.sources = nil
	v.wg.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.closed {
		v.closed = true
		close(v.out)
	}
	return errors.Join(errs...)
}

// wall is the time of a moment of the monotonic clock.
func wall(ns uint64) time.Time { return time.Now().Add(time.Duration(ns) - linux.Monotonic()) }
