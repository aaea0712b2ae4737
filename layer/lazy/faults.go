package lazy

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxFaults bounds the file of faults, bytes; it is begun anew beyond, and one older file is kept.
const maxFaults = 1 << 20

// Faults is where store faults are written down, those of failed reads before their reader gets EIO, and read by the
// edge: a file of lines, nanoseconds since 1970 and the layer's node id in hexadecimal; a fault that no reader saw, because
// what was damaged was fetched again, has a third word, what it was, and a fourth, how often. Several processes may write to it.
type Faults struct{ path string }

// What a fault was.
const (
	FaultReadFailed     = "read_failed"     // a reader got EIO: nothing good came in time
	FaultStoreDamaged   = "store_damaged"   // the store gave something else than it once took
	FaultStoreTruncated = "store_truncated" // an object in the store is shorter than it was
	FaultCacheDamaged   = "cache_damaged"   // the same of the node's disk
)

// Fault is what was written down.
type Fault struct {
	When  time.Time
	Layer uint64 // its node id
	What  string
	Count int
}

// NewFaults names the file, which need not exist.
func NewFaults(path string) *Faults { return &Faults{path: path} }

// Record notes that a read of a layer fails now.
func (f *Faults) Record(id uint64, now time.Time) error {
	return f.add(fmt.Sprintf("%d %016x\n", now.UnixNano(), id))
}

// RecordRepaired notes what was found and what no reader saw.
func (f *Faults) RecordRepaired(x Fault) error {
	return f.add(fmt.Sprintf("%d %016x %s %d\n", x.When.UnixNano(), x.Layer, x.What, x.Count))
}

func (f *Faults) add(line string) error {
	w, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("record store fault: %w", err)
	}
	defer w.Close()
	if st, err := w.Stat(); err == nil && st.Size() > maxFaults {
		_ = os.Rename(f.path, f.path+".old")
		return f.add(line)
	}
	if _, err = io.WriteString(w, line); err != nil {
		return fmt.Errorf("record store fault: %w", err)
	}
	return nil
}

// FaultReader answers whether a layer had a fault in a span of time. It is safe for concurrent use.
type FaultReader struct {
	path string

	mu   sync.Mutex
	file *os.File // the one read last
	read int64    // bytes of it
	seen []Fault  // in the order of the file, bounded
}

// keepFaults bounds what a reader remembers.
const keepFaults = 16 << 10

// NewFaultReader reads what is recorded at path.
func NewFaultReader(path string) *FaultReader { return &FaultReader{path: path} }

// Between tells whether a read of one of the layers failed from one moment to another.
func (r *FaultReader) Between(ids map[uint64]bool, from, to time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.update()
	for i := len(r.seen) - 1; i >= 0; i-- {
		if f := r.seen[i]; f.What == FaultReadFailed && !f.When.Before(from) && !f.When.After(to) && ids[f.Layer] {
			return true
		}
	}
	return false
}

// News returns what was written down since it was asked last, the newest where it was too much. A reader that is asked
// for it knows nothing of the past any more.
func (r *FaultReader) News() []Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.update()
	news := r.seen
	r.seen = nil
	return news
}

// update reads what is new. r.mu is held.
func (r *FaultReader) update() {
	if r.file == nil {
		f, err := os.Open(r.path)
		if err != nil {
			return // none yet
		}
		r.file, r.read = f, 0
	}
	r.take()
	// The file may have been put aside for a new one.
	here, err1 := r.file.Stat()
	there, err2 := os.Stat(r.path)
	if err1 == nil && err2 == nil && os.SameFile(here, there) {
		return
	}
	r.take() // what came between reading and looking
	r.file.Close()
	if r.file, err1 = os.Open(r.path); err1 != nil {
		r.file = nil
		return
	}
	r.read = 0
	r.take()
}

// take reads whole lines from where the last reading ended.
func (r *FaultReader) take() {
	br := bufio.NewReader(io.NewSectionReader(r.file, r.read, 4*maxFaults))
	for {
		line, err := br.ReadBytes('\n')
		if err != nil {
			break
		}
		r.read += int64(len(line))
		if f, ok := parseFault(string(line)); ok {
			r.seen = append(r.seen, f)
		}
	}
	if n := len(r.seen) - keepFaults; n > 0 {
		r.seen = append([]Fault(nil), r.seen[n:]...)
	}
}

func parseFault(line string) (f Fault, ok bool) {
	w := strings.Fields(line)
	if len(w) != 2 && len(w) != 4 {
		return f, false
	}
	ns, err1 := strconv.ParseInt(w[0], 10, 64)
	id, err2 := strconv.ParseUint(w[1], 16, 64)
	f = Fault{When: time.Unix(0, ns), Layer: id, What: FaultReadFailed, Count: 1}
	var err3 error
	if len(w) == 4 {
		f.What = w[2]
		f.Count, err3 = strconv.Atoi(w[3])
	}
	return f, err1 == nil && err2 == nil && err3 == nil
}

// Close lets go of the file.
func (r *FaultReader) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}
