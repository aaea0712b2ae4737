package lazy

import (
	"context"
	"io"

	"github.com/opendsec/dsec/layer"
)

// Guard is the server's store for those who publish and delete: a layer that is in use is deleted when it no longer is.
func (s *Server) Guard(store layer.FileStore) layer.FileStore { return &guarded{store, s} }

type guarded struct {
	layer.FileStore
	server *Server
}

func (g *guarded) Put(ctx context.Context, m *layer.Manifest, meta, data io.Reader) (layer.Digest, error) {
	d, err := g.FileStore.Put(ctx, m, meta, data)
	if err == nil {
		g.server.Restore(d)
	}
	return d, err
}

func (g *guarded) PutFiles(ctx context.Context, m *layer.Manifest, metaPath, dataPath string) (layer.Digest, error) {
	d, err := g.FileStore.PutFiles(ctx, m, metaPath, dataPath)
	if err == nil {
		g.server.Restore(d)
	}
	return d, err
}

// Restore tells that a layer was published again that is there as it should be.
func (g *guarded) Restore(d layer.Digest) { g.server.Restore(d) }

// Probe is the store's, where it has one.
func (g *guarded) Probe() error {
	if p, ok := g.FileStore.(layer.Prober); ok {
		return p.Probe()
	}
	return nil
}

func (g *guarded) Delete(ctx context.Context, d layer.Digest) error { return g.server.Delete(ctx, d) }
