package posix

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/opendsec/dsec/layer"
)

// maxKnown bounds the manifests that a Node keeps in memory.
const maxKnown = 1024

// Node gives the layers of a store on the same machine to its backends: the store's own files. They were
// compared with their digests when they were published; Local verifies the manifest and the sizes, Verify all.
type Node struct {
	store *Store

	mu    sync.Mutex
	known map[layer.Digest]*layer.Local // manifests do not change: what was verified once stays so
}

var (
	_ layer.Node     = (*Node)(nil)
	_ layer.Verifier = (*Node)(nil)
)

// NewNode returns the Node of a store.
func NewNode(s *Store) *Node {
	return &Node{store: s, known: map[layer.Digest]*layer.Local{}}
}

// Local returns the files of a layer.
func (n *Node) Local(ctx context.Context, d layer.Digest) (*layer.Local, error) {
	n.mu.Lock()
	l := n.known[d]
	n.mu.Unlock()
	if l == nil {
		m, err := n.store.Get(ctx, d)
		if err != nil {
			return nil, err
		}
		dir, err := n.store.dir(d)
		if err != nil {
			return nil, err
		}
		l = &layer.Local{Digest: d, Manifest: *m, MetaPath: filepath.Join(dir, metaName)}
		if m.Data.Size > 0 {
			l.DataPath = filepath.Join(dir, dataName)
		}
	}
	err := checkFile(l.MetaPath, l.Manifest.Meta.Size)
	if err == nil && l.DataPath != "" {
		err = checkFile(l.DataPath, l.Manifest.Data.Size)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		delete(n.known, d)
		if errors.Is(err, os.ErrNotExist) {
			if _, gerr := n.store.Get(ctx, d); gerr != nil {
				return nil, gerr // deleted meanwhile
			}
		}
		return nil, unavailable(d, err)
	}
	if n.known[d] == nil {
		if len(n.known) >= maxKnown {
			for old := range n.known {
				delete(n.known, old)
				break
			}
		}
		n.known[d] = l
	}
	copied := *l
	return &copied, nil
}

// Inode names the file that holds a layer's data now, or its metadata where it has no data: another one after a damaged
// layer was replaced. 0 = it is not there.
func (n *Node) Inode(d layer.Digest) uint64 {
	dir, err := n.store.dir(d)
	if err != nil {
		return 0
	}
	for _, name := range []string{dataName, metaName} {
		if st, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			if sys, ok := st.Sys().(*syscall.Stat_t); ok {
				return sys.Ino
			}
		}
	}
	return 0
}

// Verify reads a whole layer and compares it with its digest.
func (n *Node) Verify(ctx context.Context, d layer.Digest) error { return n.store.Verify(ctx, d) }

func checkFile(path string, size int64) error {
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if st.Size() != size || !st.Mode().IsRegular() {
		return fmt.Errorf("%w: %s has %d bytes, its manifest says %d", layer.ErrDamaged, filepath.Base(path), st.Size(), size)
	}
	return nil
}
