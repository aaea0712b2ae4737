package record

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/opendsec/dsec/guest/wire"
)

// Stream of a piece of output.
type Stream = wire.Stream

// Options bound a Log. Zero fields get the defaults.
type Options struct {
	Head  int64 // bytes of a command's output kept from its beginning; default 256 KiB
	Tail  int64 // bytes kept from its end; default 768 KiB
	Total int64 // bytes of all files of a sandbox; default 64 MiB
	Keep  int   // ended commands kept; default 10,000
	Sync  bool  // Sync reaches the disk
	// Clock gives the wall clock and the time since boot.
	Clock func() (wall time.Time, boot time.Duration)
}

func (o Options) withDefaults() Options {
	if o.Head <= 0 {
		o.Head = 256 << 10
	}
	if o.Tail <= 0 {
		o.Tail = 768 << 10
	}
	if o.Total <= 0 {
		o.Total = 64 << 20
	}
	if o.Keep <= 0 {
		o.Keep = 10_000
	}
	return o
}

// ErrUnknownCommand: no command of this order is kept.
var ErrUnknownCommand = errors.New("no such command in the record")

// Log is the record of one sandbox. Methods are safe for concurrent use.
type Log struct {
	opt Options

	mu        sync.RWMutex
	dir       string
	f         *os.File
	size      int64
	seq       int64
	lastOrder int64
	commands  map[int64]*command
	ops       map[string]int64 // operation id -> order
	ended     []int64          // orders of ended commands, oldest first
	live      int
	forgotten int64
	spilled   int64 // bytes in segment files
	spill     spillFile
	compactAt int64 // size below which another compaction would gain little
	noted     int64 // bytes of entries of no command, which the next compaction drops
	synced    int64 // bytes of f known to be on disk

	syncMu sync.Mutex // held during fsync; taken before mu
}

// command is what is kept in memory of a command: where its parts lie.
type command struct {
	order      int64
	op         string
	start, end int64 // positions of its entries; end 0 = running
	out        *output
}

// CountFrom makes commands count from an order; 0 leaves it. The entry that says so is recorded already.
func (l *Log) CountFrom(order int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastOrder = max(l.lastOrder, order-1)
}

// NextOrder is what the next command's order will be.
func (l *Log) NextOrder() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.lastOrder + 1
}

// Create makes a new record in dir, which must not exist.
func Create(dir string, opt Options) (*Log, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make record: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, journalName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		_ = os.Remove(dir)
		return nil, fmt.Errorf("make record: %w", err)
	}
	return newLog(dir, f, opt), nil
}

const journalName = "journal"

func newLog(dir string, f *os.File, opt Options) *Log {
	return &Log{opt: opt.withDefaults(), dir: dir, f: f, commands: map[int64]*command{}, ops: map[string]int64{}}
}

// Rename moves the record to another directory, which must not exist.
func (l *Log) Rename(dir string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := os.Rename(l.dir, dir); err != nil {
		return fmt.Errorf("name record: %w", err)
	}
	l.dir = dir
	return nil
}

// Append writes an entry; it fills in its sequence and times.
func (l *Log) Append(e *Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	pos, err := l.append(e)
	if err == nil {
		l.noted += l.size - pos
	}
	return err
}

func (l *Log) append(e *Entry) (pos int64, err error) {
	wall, boot := l.opt.Clock()
	e.Sequence, e.WallNanos, e.BootNanos = l.seq+1, wall.UnixNano(), int64(boot)
	b := buffers.Get().(*[]byte)
	defer putBuffer(b)
	if *b, err = appendEntry(*b, e); err != nil {
		return 0, err
	}
	if pos, err = l.write(*b); err != nil {
		return 0, err
	}
	l.seq++
	return pos, nil
}

// write puts a whole frame at the end. A write that failed half-way is overwritten by the next.
func (l *Log) write(b []byte) (pos int64, err error) {
	if l.f == nil {
		return 0, fmt.Errorf("write journal: %w", os.ErrClosed)
	}
	if _, err := l.f.WriteAt(b, l.size); err != nil {
		_ = l.f.Truncate(l.size)
		return 0, fmt.Errorf("write journal: %w", err)
	}
	pos = l.size
	l.size += int64(len(b))
	return pos, nil
}

// Sync waits until everything written before is on disk; without Options.Sync it does nothing. Callers that
// arrive together share one fsync.
func (l *Log) Sync() error {
	if !l.opt.Sync {
		return nil
	}
	l.mu.RLock()
	target, f := l.size, l.f
	l.mu.RUnlock()
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.mu.RLock()
	moved, done, size := l.f != f, l.synced >= target, l.size // a compaction reaches the disk by itself
	l.mu.RUnlock()
	if moved || done {
		return nil
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync journal: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == f {
		l.synced = size
	}
	return nil
}

// Entries calls fn for each entry with a greater sequence, oldest first, until fn returns false.
func (l *Log) Entries(after int64, fn func(*Entry) bool) error {
	var pos int64
	for {
		batch, next, err := l.entries(pos, after)
		if err != nil {
			return err
		}
		for _, e := range batch {
			if !fn(e) {
				return nil
			}
			after = e.Sequence
		}
		if next < 0 {
			return nil
		}
		pos = next
	}
}

// entries reads a bounded batch from pos on; next is -1 at the end. fn above runs outside of the lock.
func (l *Log) entries(pos, after int64) (batch []*Entry, next int64, err error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	f, done, err := l.reading()
	if err != nil {
		return nil, 0, err
	}
	defer done()
	s := newScanner(f, pos, l.size)
	defer s.close()
	for len(batch) < 256 {
		fr, err := s.next(true)
		if errors.Is(err, io.EOF) || errors.Is(err, errTorn) {
			return batch, -1, nil
		}
		if err != nil {
			return nil, 0, fmt.Errorf("read journal: %w", err)
		}
		if fr.kind != frameEntry {
			continue
		}
		e, err := fr.entry()
		if err != nil {
			return nil, 0, err
		}
		if e.Sequence > after {
			batch = append(batch, e)
		}
	}
	return batch, s.pos, nil
}

// Sequence is that of the last entry.
func (l *Log) Sequence() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.seq
}

// Usage is the size of the record's files, in bytes.
func (l *Log) Usage() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.size + l.spilled
}

// reading returns the journal for reading; a closed record is opened for the occasion.
func (l *Log) reading() (f *os.File, done func(), err error) {
	if l.f != nil {
		return l.f, func() {}, nil
	}
	f, err = os.Open(filepath.Join(l.dir, journalName))
	if err != nil {
		return nil, nil, fmt.Errorf("read journal: %w", err)
	}
	return f, func() { _ = f.Close() }, nil
}

// Close closes the files. A closed record can be read but not written.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	l.spill.close()
	err := l.f.Close()
	l.f = nil
	return err
}

// Remove closes the record and removes its directory.
func (l *Log) Remove() error {
	_ = l.Close()
	if err := os.RemoveAll(l.dir); err != nil {
		return fmt.Errorf("remove record: %w", err)
	}
	return nil
}
