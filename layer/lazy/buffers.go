package lazy

import (
	"sync"
	"sync/atomic"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer"
)

const (
	// slabSize is a huge page: the disk writes into it in one piece.
	slabSize = 2 << 20
	// spareSlabs are for chunks that are in use and do not stay.
	spareSlabs = 8
)

// buffers lends memory for chunks. It begins at a page, so that the disk writes into it
// directly, and is used again: to the collector's memory of this size the kernel would give its pages anew, one fault
// each, which takes longer than to read and verify them.
type buffers struct {
	most int // slabs that are kept for ever; what is needed beyond is the collector's

	mu    sync.Mutex
	slabs [][]byte
	free  [][]byte
	out   atomic.Int64 // lent
}

// buffer is a chunk's content. Each holder of a reference releases it once; after the last the memory is somebody else's.
type buffer struct {
	b    []byte
	refs atomic.Int64
	home *buffers // nil = the collector's
}

// get lends size bytes of any content, with one reference.
func (p *buffers) get(size int) *buffer {
	b := p.take(size)
	if b == nil {
		return ownBuffer(make([]byte, size))
	}
	p.out.Add(1)
	x := &buffer{b: b[:size], home: p}
	x.refs.Store(1)
	return x
}

func (p *buffers) take(size int) []byte {
	if size > layer.ChunkSize {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 && len(p.slabs) < p.most {
		slab, err := linux.HugePages(slabSize)
		if err != nil {
			return nil
		}
		p.slabs = append(p.slabs, slab)
		for b := slab; len(b) >= layer.ChunkSize; b = b[layer.ChunkSize:] {
			p.free = append(p.free, b[:layer.ChunkSize:layer.ChunkSize])
		}
	}
	n := len(p.free)
	if n == 0 {
		return nil
	}
	b := p.free[n-1]
	p.free = p.free[:n-1]
	return b
}

// ownBuffer wraps memory of the collector's.
func ownBuffer(b []byte) *buffer {
	x := &buffer{b: b}
	x.refs.Store(1)
	return x
}

func (x *buffer) hold(n int) { x.refs.Add(int64(n)) }

func (x *buffer) release() {
	left := x.refs.Add(-1)
	if left < 0 {
		panic("lazy: a chunk's memory was given back twice")
	}
	if left > 0 || x.home == nil {
		return
	}
	p, b := x.home, x.b[:layer.ChunkSize]
	x.b = nil
	p.mu.Lock()
	p.free = append(p.free, b)
	p.mu.Unlock()
	p.out.Add(-1)
}

// close gives the memory back, unless some of it is lent.
func (p *buffers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out.Load() != 0 {
		return
	}
	for _, b := range p.slabs {
		_ = linux.FreePages(b)
	}
	p.slabs, p.free = nil, nil
}
