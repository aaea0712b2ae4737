package lazy

import (
	"encoding/binary"
	"math/bits"
	"os"
	"sync/atomic"

	"github.com/opendsec/dsec/layer"
)

// blockSize is what a trace counts, bytes: the least that the kernel reads.
const blockSize = 4096

// trace notes which blocks of a layer's data were read, one bit each.
type trace struct {
	blocks []atomic.Uint64
	dirty  atomic.Bool
}

// note marks the bytes from off to end.
func (t *trace) note(off, end int64) {
	news := false
	for b := off / blockSize; b < (end+blockSize-1)/blockSize; {
		word, bit := b/64, b%64
		n := min(64-bit, (end+blockSize-1)/blockSize-b)
		mask := ^uint64(0) >> (64 - n) << bit
		if t.blocks[word].Load()&mask != mask {
			t.blocks[word].Or(mask)
			news = true
		}
		b += n
	}
	if news {
		t.dirty.Store(true)
	}
}

// Trace says what was read of a layer since it came to this node.
type Trace struct {
	Digest     layer.Digest `json:"digest"`
	DataBytes  int64        `json:"dataBytes"`
	ReadBytes  int64        `json:"readBytes"`  // of different blocks of 4 KiB that the kernel asked for, its readahead included
	ChunkBytes int64        `json:"chunkBytes"` // of the chunks in which they lie
	Share      float64      `json:"share"`      // ReadBytes of DataBytes
	Chunks     [][2]int     `json:"chunks"`     // ranges of chunks that were read: from, and the first not read
}

func (l *attached) traced() Trace {
	b := &l.manifest.Data
	t := Trace{Digest: l.digest, DataBytes: b.Size, Chunks: [][2]int{}}
	per := b.ChunkSize / blockSize
	last := -1
	for i := range l.trace.blocks {
		w := l.trace.blocks[i].Load()
		t.ReadBytes += int64(bits.OnesCount64(w)) * blockSize
		for w != 0 {
			bit := int64(bits.TrailingZeros64(w))
			chunk := int((int64(i)*64 + bit) / per)
			if chunk > last {
				t.ChunkBytes += int64(l.chunkLen(chunk))
				if n := len(t.Chunks); n > 0 && t.Chunks[n-1][1] == chunk {
					t.Chunks[n-1][1]++
				} else {
					t.Chunks = append(t.Chunks, [2]int{chunk, chunk + 1})
				}
				last = chunk
			}
			w &= w - 1
		}
	}
	if b.Size > 0 {
		t.Share = float64(t.ReadBytes) / float64(b.Size)
	}
	return t
}

// save writes the marks to a file, load reads them back. What is lost is lost: they are for people.
func (t *trace) save(path string) error {
	if !t.dirty.Swap(false) {
		return nil
	}
	b := make([]byte, 0, 8*len(t.blocks))
	for i := range t.blocks {
		b = binary.LittleEndian.AppendUint64(b, t.blocks[i].Load())
	}
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (t *trace) load(path string) {
	b, err := os.ReadFile(path)
	if err != nil || len(b) != 8*len(t.blocks) {
		return
	}
	for i := range t.blocks {
		t.blocks[i].Or(binary.LittleEndian.Uint64(b[8*i:]))
	}
}
