package lazy

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/lazy/cache"
)

// attached is a layer whose metadata is on the node's disk.
type attached struct {
	digest   layer.Digest
	id       uint64
	manifest *layer.Manifest
	keys     []cache.Key // of its data's chunks
	streams  streams
	trace    trace
	opened   atomic.Int64 // open files in the kernel: mounts
}

// NodeID is the number by which the kernel knows a layer's file: the first eight bytes of its digest. It needs no
// memory, so that a successor knows what the kernel means.
func NodeID(d layer.Digest) (uint64, error) {
	k, err := cache.ParseKey(d.Hex())
	if err != nil {
		return 0, err
	}
	return max(binary.BigEndian.Uint64(k[:8]), 2), nil
}

func newAttached(d layer.Digest, m *layer.Manifest) (*attached, error) {
	id, err := NodeID(d)
	if err != nil {
		return nil, err
	}
	l := &attached{digest: d, id: id, manifest: m, keys: make([]cache.Key, len(m.Data.Chunks))}
	for n, c := range m.Data.Chunks {
		if l.keys[n], err = cache.ParseKey(c); err != nil {
			return nil, fmt.Errorf("layer %s: %w", d, err)
		}
	}
	l.trace.blocks = make([]atomic.Uint64, (m.Data.Size/blockSize+63)/64)
	return l, nil
}

// chunkLen is the size of a chunk, bytes.
func (l *attached) chunkLen(n int) int {
	b := &l.manifest.Data
	return int(min(b.ChunkSize, b.Size-int64(n)*b.ChunkSize))
}
