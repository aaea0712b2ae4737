package lazy

import (
	"bufio"
	"bytes"
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

// Faults is where store faults are written down before a reader gets EIO, and read by the edge: a file of lines,
// nanoseconds since 1970 and the layer's node id in hexadecimal. Several processes may write to it.
type Faults struct{ path string }

// NewFaults names the file, which need not exist.
func NewFaults(path string) *Faults { return &Faults{path: path} }

// Record notes that a read of a layer fails now.
func (f *Faults) Record(id uint64, now time.Time) error {
	w, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("record store fault: %w", err)
	}
	defer w.Close()
	if st, err := w.Stat(); err == nil && st.Size() > maxFaults {
		_ = os.Rename(f.path, f.path+".old")
		return f.Record(id, now)
	}
	if _, err = fmt.Fprintf(w, "%d %016x\n", now.UnixNano(), id); err != nil {
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
	seen []fault  // in the order of the file, bounded
}

type fault struct {
	when int64
	id   uint64
}

// keepFaults bounds what a reader remembers.
const keepFaults = 16 << 10

// NewFaultReader reads what is recorded at path.
func NewFaultReader(path string) *FaultReader { return &FaultReader{path: path} }

// Between tells whether one of the layers had a fault from one moment to another.
func (r *FaultReader) Between(ids map[uint64]bool, from, to time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.update()
	for i := len(r.seen) - 1; i >= 0; i-- {
		if f := r.seen[i]; f.when >= from.UnixNano() && f.when <= to.UnixNano() && ids[f.id] {
			return true
		}
	}
	return false
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
		when, id, ok := strings.Cut(string(bytes.TrimSpace(line)), " ")
		ns, err1 := strconv.ParseInt(when, 10, 64)
		n, err2 := strconv.ParseUint(id, 16, 64)
		if ok && err1 == nil && err2 == nil {
			r.seen = append(r.seen, fault{ns, n})
		}
	}
	if n := len(r.seen) - keepFaults; n > 0 {
		r.seen = append([]fault(nil), r.seen[n:]...)
	}
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
