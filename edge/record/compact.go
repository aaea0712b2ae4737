package record

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

const compactName = "journal.new"

// Full tells that the record has outgrown its bound and that there is something to drop: call Compact.
func (l *Log) Full() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.size+l.spilled > max(l.opt.Total, l.compactAt) && (len(l.ended) > 0 || l.noted > l.opt.Total/4)
}

// Compact rewrites the journal so that ended commands take at most half of the bound: the newest keep their
// output, older ones only their results, the oldest are forgotten. cp stands for the entries that go; its
// orders and counts are filled in. created is the sandbox's first entry.
func (l *Log) Compact(created *Entry, cp *Checkpoint) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return fmt.Errorf("compact journal: %w", os.ErrClosed)
	}
	plan, err := l.planCompaction()
	if err != nil {
		return err
	}
	path := filepath.Join(l.dir, compactName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("compact journal: %w", err)
	}
	fail := func(err error) error {
		_ = f.Close()
		_ = os.Remove(path)
		return fmt.Errorf("compact journal: %w", err)
	}
	cp.NextOrder = l.lastOrder + 1
	cp.ForgottenCommands = l.forgotten + int64(len(plan.forget))
	n := newLog(l.dir, f, l.opt)
	if err := n.copyFrom(l, plan, created, cp); err != nil {
		return fail(err)
	}
	if l.opt.Sync {
		if err := f.Sync(); err != nil {
			return fail(err)
		}
	}
	if err := os.Rename(path, filepath.Join(l.dir, journalName)); err != nil {
		return fail(err)
	}
	l.adopt(n, plan)
	return nil
}

// compaction says which commands stay, and how.
type compaction struct {
	forget []int64            // ended commands that go
	drop   map[int64]struct{} // ended commands whose output goes
}

func (l *Log) planCompaction() (*compaction, error) {
	p := &compaction{drop: map[int64]struct{}{}}
	budget := l.opt.Total / 2
	for _, order := range slices.Backward(l.ended) {
		c := l.commands[order]
		size, err := l.entriesSize(c)
		if err != nil {
			return nil, err
		}
		if budget -= size; budget < 0 {
			p.forget = append(p.forget, order)
			continue
		}
		if c.out == nil {
			continue
		}
		// The journal's share is counted as bytes of output; frames add little.
		out := c.out.headBytes
		for _, s := range c.out.segments {
			out += s.size
		}
		if budget-out < l.opt.Total/8 { // what is left is for results
			p.drop[order] = struct{}{}
			continue
		}
		budget -= out
	}
	return p, nil
}

func (l *Log) entriesSize(c *command) (int64, error) {
	var n int64
	for _, pos := range []int64{c.start, c.end} {
		s := newScanner(l.f, pos, l.size)
		fr, err := s.next(true)
		if err != nil {
			s.close()
			return 0, fmt.Errorf("compact journal: read at %d: %w", pos, err)
		}
		n += fr.size
		s.close()
	}
	return n, nil
}

// copyFrom writes the compacted journal of old into the new log l.
func (l *Log) copyFrom(old *Log, plan *compaction, created *Entry, cp *Checkpoint) error {
	l.seq = old.seq
	buf, err := appendEntry(nil, created)
	if err != nil {
		return err
	}
	if _, err := l.write(buf); err != nil {
		return err
	}
	if _, err := l.append(&Entry{Body: &Entry_Checkpoint{Checkpoint: cp}}); err != nil {
		return err
	}
	forget := make(map[int64]struct{}, len(plan.forget))
	for _, order := range plan.forget {
		forget[order] = struct{}{}
	}
	w := batchWriter{log: l}
	s := newScanner(old.f, 0, old.size)
	defer s.close()
	for {
		fr, err := s.next(false)
		if errors.Is(err, io.EOF) {
			return w.flush()
		}
		if err != nil {
			return err
		}
		order, keep, err := old.keeps(fr, plan, forget)
		if err != nil {
			return err
		}
		if !keep {
			continue
		}
		pos, err := w.add(fr)
		if err != nil {
			return err
		}
		moved := frame{pos: pos, size: fr.size, kind: fr.kind, payload: fr.payload}
		if err := l.index(&moved, func(*Entry) error { return nil }); err != nil {
			return err
		}
		if c := l.commands[order]; c != nil && c.out != nil {
			c.out.head, c.out.tail = old.commands[order].out.head, old.commands[order].out.tail
		}
	}
}

// keeps tells whether a frame goes into the compacted journal, and whose it is.
func (l *Log) keeps(fr *frame, plan *compaction, forget map[int64]struct{}) (order int64, keep bool, err error) {
	if fr.kind == frameOutput {
		if order, _, _, _, err = fr.output(); err != nil {
			return 0, false, err
		}
		if _, drop := plan.drop[order]; drop {
			return order, false, nil
		}
	} else {
		e, err := fr.entry()
		if err != nil {
			return 0, false, err
		}
		switch body := e.Body.(type) {
		case *Entry_CommandStarted:
			order = body.CommandStarted.Order
		case *Entry_CommandEnded:
			order = body.CommandEnded.Order
		}
	}
	_, gone := forget[order]
	return order, order != 0 && !gone && l.commands[order] != nil, nil
}

// batchWriter gathers frames into large writes.
type batchWriter struct {
	log *Log
	buf []byte
}

func (w *batchWriter) add(fr *frame) (pos int64, err error) {
	pos = w.log.size + int64(len(w.buf))
	start := len(w.buf)
	w.buf = append(w.buf, 0, 0, 0, 0, 0, 0, 0, 0, fr.kind)
	w.buf = append(w.buf, fr.payload...)
	seal(w.buf[start:])
	if len(w.buf) >= 1<<20 {
		err = w.flush()
	}
	return pos, err
}

func (w *batchWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	_, err := w.log.write(w.buf)
	w.buf = w.buf[:0]
	return err
}

// adopt takes over the compacted log n.
func (l *Log) adopt(n *Log, plan *compaction) {
	for _, order := range plan.forget {
		l.dropSegments(l.commands[order])
	}
	for order := range plan.drop {
		c := l.commands[order]
		l.dropSegments(c)
		if m := n.commands[order]; m != nil {
			m.out = &output{end: c.out.end, dropped: true}
		}
	}
	for order, m := range n.commands {
		old := l.commands[order]
		if old.out == nil || m.out != nil && m.out.dropped {
			continue
		}
		if m.out == nil {
			m.out = new(output)
		}
		spans := m.out.spans
		*m.out = *old.out // the journal's part has moved, all else stays
		m.out.spans = spans
	}
	_ = l.f.Close()
	l.synced = 0
	l.f, l.size, l.seq = n.f, n.size, n.seq
	l.commands, l.ops, l.ended, l.live = n.commands, n.ops, n.ended, n.live
	l.noted = n.noted
	l.forgotten += int64(len(plan.forget))
	// What could not be dropped, the output of running commands, must not cause one compaction after another.
	l.compactAt = (l.size + l.spilled) * 3 / 2
}
