package layer

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/zeebo/blake3"
	"golang.org/x/sync/errgroup"
)

// ChunkSize is how large the chunks are that writers of this version make, bytes: what is fetched and
// verified at once.
const ChunkSize = 256 << 10

// HashChunk returns the digest of one chunk, as it stands in a manifest.
func HashChunk(b []byte) string {
	sum := blake3.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Describe reads size bytes and returns their description in chunks of ChunkSize.
func Describe(ctx context.Context, r io.ReaderAt, size int64) (Blob, error) {
	b := Blob{Size: size, ChunkSize: ChunkSize, Chunks: make([]string, (size+ChunkSize-1)/ChunkSize)}
	err := eachChunk(ctx, r, &b, func(n int, chunk []byte) error {
		b.Chunks[n] = HashChunk(chunk)
		return nil
	})
	return b, err
}

// Verify reads the whole of a blob and compares it with its description. Errors: *DamagedChunks, or the reader's.
func (b *Blob) Verify(ctx context.Context, r io.ReaderAt) error {
	var mu sync.Mutex
	var bad []int
	err := eachChunk(ctx, r, b, func(n int, chunk []byte) error {
		if HashChunk(chunk) != b.Chunks[n] {
			mu.Lock()
			bad = append(bad, n)
			mu.Unlock()
		}
		return nil
	})
	if err == nil && len(bad) > 0 {
		slices.Sort(bad)
		err = &DamagedChunks{bad, len(b.Chunks)}
	}
	return err
}

// ErrTruncated is the ErrDamaged of a blob that is shorter than its manifest says.
var ErrTruncated = fmt.Errorf("%w: truncated", ErrDamaged)

// Truncated is the error of a blob that ends before size bytes at off: ErrTruncated.
func Truncated(off int64, size int) error {
	return fmt.Errorf("%w: it ends before byte %d", ErrTruncated, off+int64(size))
}

// hashers is how many chunks are read and hashed at a time.
const hashers = 4

// eachChunk calls visit for every chunk, several at a time.
func eachChunk(ctx context.Context, r io.ReaderAt, b *Blob, visit func(n int, chunk []byte) error) error {
	g, ctx := errgroup.WithContext(ctx)
	count := len(b.Chunks)
	workers := min(hashers, count)
	for w := range workers {
		g.Go(func() error {
			buf := make([]byte, min(b.ChunkSize, b.Size))
			for n := w; n < count; n += workers {
				if err := ctx.Err(); err != nil {
					return context.Cause(ctx)
				}
				off := int64(n) * b.ChunkSize
				chunk := buf[:min(b.ChunkSize, b.Size-off)]
				if got, err := r.ReadAt(chunk, off); got < len(chunk) {
					return fmt.Errorf("chunk %d: read %d bytes at %d: %w", n, len(chunk), off, err)
				}
				if err := visit(n, chunk); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// Chunker describes a stream as it passes: write to it, then call Blob.
type Chunker struct {
	blob Blob
	buf  []byte
}

// Write never fails.
func (c *Chunker) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if len(c.buf) == 0 && len(p) >= ChunkSize {
			c.add(p[:ChunkSize])
			p = p[ChunkSize:]
			continue
		}
		if c.buf == nil {
			c.buf = make([]byte, 0, ChunkSize)
		}
		k := min(ChunkSize-len(c.buf), len(p))
		c.buf = append(c.buf, p[:k]...)
		p = p[k:]
		if len(c.buf) == ChunkSize {
			c.add(c.buf)
			c.buf = c.buf[:0]
		}
	}
	return n, nil
}

func (c *Chunker) add(chunk []byte) {
	c.blob.Chunks = append(c.blob.Chunks, HashChunk(chunk))
	c.blob.Size += int64(len(chunk))
}

// Blob describes all that was written. Nothing may be written afterwards.
func (c *Chunker) Blob() Blob {
	if len(c.buf) > 0 {
		c.add(c.buf)
		c.buf = nil
	}
	b := c.blob
	b.ChunkSize = ChunkSize
	return b
}
