package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
)

// ErrDamaged is wrapped by Open's error for a record that no kill of its writer explains: what follows the damage
// cannot be trusted to be all that happened.
var ErrDamaged = errors.New("the record is damaged")

// Open reads a record that an earlier process wrote. visit gets every entry in order. torn is the number of
// bytes that were cut off its end because they were not whole. Errors: ErrDamaged; os.ErrNotExist.
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
			// A writer that is killed leaves one frame cut short, and nothing after it.
			if more, err := followed(l.f, l.size); err != nil {
				return 0, fmt.Errorf("read journal: %w", err)
			} else if more {
				return 0, fmt.Errorf("journal at %d: %w", l.size, ErrDamaged)
			}
			return l.truncate()
		}
		if err != nil {
			return 0, fmt.Errorf("read journal: %w", err)
		}
		if err := l.index(fr, visit); errors.Is(err, errTorn) || errors.Is(err, proto.Error) {
			return 0, fmt.Errorf("%w: %w", ErrDamaged, err) // its checksum was right
		} else if err != nil {
			return 0, err
		}
		l.size = s.pos
	}
}

// maxSearch bounds how far behind a broken frame a whole one is looked for.
const maxSearch = 1 << 20

// followed tells whether a whole frame lies behind the broken one at pos.
func followed(f *os.File, pos int64) (bool, error) {
	b := make([]byte, maxSearch)
	n, err := f.ReadAt(b, pos)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	b = b[:n]
	for i := 1; i+headerSize < n; i++ {
		length := int(binary.LittleEndian.Uint32(b[i:]))
		if length < 2 || length > n-i-headerSize {
			continue
		}
		body := b[i+headerSize:][:length]
		if (body[0] == frameEntry || body[0] == frameOutput) && crc32.Checksum(body, castagnoli) == binary.LittleEndian.Uint32(b[i+4:]) {
			return true, nil
		}
	}
	return false, nil
}

// Renew begins a record anew where a damaged one lies. The old journal stays beside it, as journal.damaged, as long as
// the record does.
func Renew(dir string, opt Options) (*Log, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("renew record: %w", err)
	}
	for _, e := range entries {
		switch e.Name() {
		case damagedName:
		case journalName:
			err = os.Rename(filepath.Join(dir, journalName), filepath.Join(dir, damagedName))
		default:
			err = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
		if err != nil {
			return nil, fmt.Errorf("renew record: %w", err)
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, journalName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("renew record: %w", err)
	}
	return newLog(dir, f, opt), nil
}

const damagedName = "journal.damaged"

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
		case *Entry_Created:
			l.lastOrder = max(l.lastOrder, body.Created.FirstOrder-1)
			l.noted += fr.size
		case *Entry_Checkpoint:
			l.lastOrder = max(l.lastOrder, body.Checkpoint.NextOrder-1)
			l.forgotten = body.Checkpoint.ForgottenCommands
		default:
			l.noted += fr.size
		}
		return visit(e)
	}
	return nil // a later version's kind of frame
}
