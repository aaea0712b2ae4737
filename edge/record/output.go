package record

import (
	"fmt"
)

// regionSize bounds how much of the journal lies between two index entries of a command's output, and so how
// far a reader has to look for it among the frames of others.
const regionSize = 64 << 10

// span is a region of the journal that begins with an output frame of the command and holds more of them,
// among frames of others.
type span struct {
	offset   int64 // of the output in the first frame
	pos, end int64 // of the region in the journal
}

// output is the index of one command's recorded output.
type output struct {
	head, tail int64 // bounds, in bytes

	spans     []span
	headBytes int64 // output in the journal
	headFull  bool
	segments  []segment // at most two, oldest first
	end       int64     // offset after the last byte
	dropped   bool      // everything was dropped by a compaction
}

// kept is the number of bytes that can be read.
func (o *output) kept() int64 {
	n := o.headBytes
	for _, s := range o.segments {
		n += s.bytes
	}
	return n
}

// bounds gives a new command its share: the more run at once, the less each keeps, so that all of them
// together stay near Total.
func (l *Log) bounds() (head, tail int64) {
	share := l.opt.Total / 16 / int64(max(1, l.live))
	return min(l.opt.Head, max(share, 4<<10)), min(l.opt.Tail, max(3*share, 12<<10))
}

// Output records a piece of a running command's output and returns the offset up to which all is recorded.
// What was recorded before is left out; a piece that begins later than that leaves a gap, which readers see
// as cut.
func (l *Log) Output(order, offset int64, stream Stream, data []byte) (end int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.commands[order]
	if c == nil || c.end != 0 {
		return 0, fmt.Errorf("output of command %d: %w", order, ErrUnknownCommand)
	}
	if c.out == nil {
		c.out = new(output)
		c.out.head, c.out.tail = l.bounds()
	}
	o := c.out
	if offset < o.end {
		known := o.end - offset
		if known >= int64(len(data)) {
			return o.end, nil
		}
		data, offset = data[known:], o.end
	}
	for len(data) > 0 {
		piece := data[:min(len(data), maxPiece)]
		if o.headFull {
			err = l.spillOutput(c, offset, stream, piece)
		} else {
			if room := max(0, o.head-o.headBytes); int64(len(piece)) >= room {
				piece = piece[:room]
				o.headFull = true
			}
			if len(piece) > 0 {
				err = l.inlineOutput(c, offset, stream, piece)
			}
		}
		if err != nil {
			return o.end, err
		}
		offset += int64(len(piece))
		o.end = offset
		data = data[len(piece):]
	}
	return o.end, nil
}

func (l *Log) inlineOutput(c *command, offset int64, stream Stream, data []byte) error {
	b := buffers.Get().(*[]byte)
	defer putBuffer(b)
	*b = appendOutput(*b, c.order, offset, stream, data)
	pos, err := l.write(*b)
	if err != nil {
		return err
	}
	c.out.addInline(offset, int64(len(data)), pos, int64(len(*b)))
	return nil
}

// addInline notes a frame of the journal.
func (o *output) addInline(offset, bytes, pos, size int64) {
	o.headBytes += bytes
	if n := len(o.spans); n > 0 && pos-o.spans[n-1].pos < regionSize {
		o.spans[n-1].end = pos + size
	} else {
		o.spans = append(o.spans, span{offset: offset, pos: pos, end: pos + size})
	}
	o.end = offset + bytes
}
