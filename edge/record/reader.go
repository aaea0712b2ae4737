package record

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
)

// Piece is some consecutive output of one stream. A piece whose Offset is greater than the end of the one
// before it follows a cut.
type Piece struct {
	Offset int64
	Stream Stream
	Data   []byte
}

// Reader reads one command's recorded output in order. It is not safe for concurrent use; any number of
// readers may read while the command writes.
type Reader struct {
	log   *Log
	order int64
	next  int64

	// Where the last read of a segment ended, so that the next goes on there.
	hintSegment, hintOffset, hintPos int64
}

// Reader reads from an offset on.
func (l *Log) Reader(order, from int64) *Reader {
	return &Reader{log: l, order: order, next: max(0, from)}
}

// Offset is where the next Read begins.
func (r *Reader) Offset() int64 { return r.next }

// Read returns at most about max bytes of what is recorded, none at its end. Error: ErrUnknownCommand.
func (r *Reader) Read(max int) ([]Piece, error) {
	l := r.log
	l.mu.RLock()
	defer l.mu.RUnlock()
	c := l.commands[r.order]
	if c == nil {
		_, err := l.command(r.order)
		return nil, err
	}
	if c.out == nil || r.next >= c.out.end {
		return nil, nil
	}
	p := pieces{next: r.next, max: max}
	if err := r.readHead(c.out, &p); err != nil {
		return nil, err
	}
	for _, seg := range c.out.segments {
		if p.full() || seg.end <= p.next {
			continue
		}
		if err := r.readSegment(seg, &p); err != nil {
			return nil, err
		}
	}
	r.next = p.next
	if len(p.list) == 0 { // nothing of the rest is kept
		r.next = c.out.end
	}
	return p.list, nil
}

func (r *Reader) readHead(o *output, p *pieces) error {
	if len(o.spans) == 0 {
		return nil
	}
	f, done, err := r.log.reading()
	if err != nil {
		return err
	}
	defer done()
	i := sort.Search(len(o.spans), func(i int) bool { return o.spans[i].offset > p.next })
	for i = max(0, i-1); i < len(o.spans) && !p.full(); i++ {
		s := newScanner(f, o.spans[i].pos, o.spans[i].end)
		_, err := p.collect(s, r.order)
		s.close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Reader) readSegment(seg segment, p *pieces) error {
	f, err := os.Open(r.log.segmentPath(r.order, seg.start))
	if err != nil {
		return fmt.Errorf("read output: %w", err)
	}
	defer f.Close()
	var pos int64
	if r.hintSegment == seg.start && r.hintOffset == p.next {
		pos = r.hintPos
	}
	s := newScanner(f, pos, seg.size)
	defer s.close()
	pos, err = p.collect(s, r.order)
	r.hintSegment, r.hintOffset, r.hintPos = seg.start, p.next, pos
	return err
}

// pieces collects output from next on.
type pieces struct {
	next int64
	max  int
	n    int
	list []Piece
}

func (p *pieces) full() bool { return p.n >= p.max }

// collect takes the command's frames from s until it is full; pos is where to go on.
func (p *pieces) collect(s *scanner, order int64) (pos int64, err error) {
	for !p.full() {
		pos = s.pos
		fr, err := s.next(true)
		if errors.Is(err, io.EOF) {
			return pos, nil
		}
		if err != nil {
			return pos, fmt.Errorf("read output: %w", err)
		}
		if fr.kind != frameOutput {
			continue
		}
		o, offset, stream, data, err := fr.output()
		if err != nil {
			return pos, fmt.Errorf("read output: %w", err)
		}
		end := offset + int64(len(data))
		if o != order || end <= p.next {
			continue
		}
		if offset < p.next {
			data, offset = data[p.next-offset:], p.next
		}
		if room := p.max - p.n; len(data) > room {
			p.add(offset, stream, data[:room])
			return pos, nil // the rest of this frame is read again
		}
		p.add(offset, stream, data)
	}
	return s.pos, nil
}

func (p *pieces) add(offset int64, stream Stream, data []byte) {
	p.n += len(data)
	p.next = offset + int64(len(data))
	if n := len(p.list); n > 0 {
		last := &p.list[n-1]
		if last.Stream == stream && last.Offset+int64(len(last.Data)) == offset {
			last.Data = append(last.Data, data...)
			return
		}
	}
	p.list = append(p.list, Piece{Offset: offset, Stream: stream, Data: append([]byte(nil), data...)})
}
