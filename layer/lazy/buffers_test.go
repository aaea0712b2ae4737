package lazy

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/lazy/cache"
	"github.com/opendsec/dsec/layer/store/memory"
)

// TestBuffersAreNobodysTwice: chunks that are read by many at once, some of whom give up, hold what they should for as long as
// they are held, and all memory is given back.
func TestBuffersAreNobodysTwice(t *testing.T) {
	ctx := t.Context()
	const size = 90 * layer.ChunkSize // more than stays in memory
	s := layertest.NewSample(t, 1, size)
	store := &memory.Store{}
	if _, err := store.Put(ctx, s.Manifest, bytes.NewReader(s.Meta), bytes.NewReader(s.Data)); err != nil {
		t.Fatal(err)
	}
	c, err := cache.Open(t.TempDir(), cache.Options{Limit: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	src := newSource(store, c, Options{Memory: 64 * layer.ChunkSize, Requests: 4, Timeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
	l, err := newAttached(s.Digest, s.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for n := range 12 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 7))
			for range 40 {
				off := rng.Int64N(size - 1)
				end := min(off+1+rng.Int64N(1<<20), size)
				ctx, cancel := context.WithCancel(ctx)
				if n%3 == 0 {
					go cancel()
				}
				pieces, done, err := src.read(ctx, l, off, end)
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					cancel()
					continue
				}
				if got := bytes.Join(pieces, nil); !bytes.Equal(got, s.Data[off:end]) {
					t.Errorf("%d to %d: other content", off, end)
				}
				done()
				cancel()
			}
		})
	}
	wg.Wait()
	src.close()
	if n := src.bufs.out.Load(); n != 0 {
		t.Errorf("%d buffers were not given back", n)
	}
	if st := c.Stats(); st.Hits == 0 {
		t.Errorf("nothing came from the disk: %+v", st)
	}
}
