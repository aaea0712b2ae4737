package record

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Open reads a record that an earlier process wrote. visit gets every entry in order. torn is the number of
// bytes that were cut off its end because they were not whole.
func Open(dir string, opt Options, visit func(*Entry) error) (l *Log, torn int64, err error) {
	f, err := os.OpenFile(filepath.Join(dir, journalName), os.O_RDWR, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("open record: %w", err)
	}
	l = newLog(dir, f, opt)
	if err := os.Remove(filepath.Join(dir, compactName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		_ = f.Close()
		return nil, 0, fmt.Errorf("open record: %w", err)
	}
	if torn, err = l.load(visit); err == nil {
		err = l.loadSegments()
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	l.forgetBeyond(l.opt.Keep)
	return l, torn, nil
}

func (l *Log) load(visit func(*Entry) error) (torn int64, err error) {
	s := newScanner(l.f, 0, -1)
	defer s.close()
	for {
		fr, err := s.next(false)
		if errors.Is(err, io.EOF) {
			return 0, nil
		}
		if errors.Is(err, errTorn) {
			return l.truncate()
		}
		if err != nil {
			return 0, fmt.Errorf("read journal: %w", err)
		}
		if err := l.index(fr, visit); err != nil {
			return 0, err
		}
		l.size = s.pos
	}
}

func (l *Log) truncate() (torn int64, err error) {
	info, err := l.f.Stat()
	if err == nil {
		torn = info.Size() - l.size
		err = l.f.Truncate(l.size)
	}
	if err != nil {
		return 0, fmt.Errorf("cut torn end off the journal: %w", err)
	}
	return torn, nil
}

// index notes what a frame holds.
func (l *Log) index(fr *frame, visit func(*Entry) error) error {
	switch fr.kind {
	case frameOutput:
		order, offset, _, data, err := fr.output()
		if err != nil {
			return fmt.Errorf("journal at %d: %w", fr.pos, err)
		}
		if c := l.commands[order]; c != nil {
			if c.out == nil {
				c.out = new(output)
				c.out.head, c.out.tail = l.bounds()
			}
			c.out.addInline(offset, int64(len(data)), fr.pos, fr.size)
		}
	case frameEntry:
		e, err := fr.entry()
		if err != nil {
			return err
		}
		l.seq = max(l.seq, e.Sequence)
		switch body := e.Body.(type) {
		case *Entry_CommandStarted:
			l.addCommand(body.CommandStarted.Order, body.CommandStarted.OperationId, fr.pos)
		case *Entry_CommandEnded:
			if c := l.commands[body.CommandEnded.Order]; c != nil && c.end == 0 {
				l.markEnded(c, fr.pos)
			}
		case *Entry_Checkpoint:
			l.lastOrder = max(l.lastOrder, body.Checkpoint.NextOrder-1)
			l.forgotten = body.Checkpoint.ForgottenCommands
		}
		return visit(e)
	}
	return nil // a later version's kind of frame
}
