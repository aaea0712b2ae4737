package importer

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// keeper decides which layers may be removed. Between the end of an import and the moment at which the catalogue names
// the layer nothing else speaks for it, so it is kept for a while; and a publisher may ask for another while.
type keeper struct {
	// publishing is held for reading while a layer is looked for and published, for writing while one is removed.
	publishing sync.RWMutex
	grace      time.Duration
	started    time.Time // who was here before may have imported anything just before

	mu    sync.Mutex
	until map[layer.Digest]time.Time
}

func newKeeper(grace time.Duration) *keeper {
	return &keeper{grace: grace, started: time.Now(), until: map[layer.Digest]time.Time{}}
}

// keep holds a layer for the grace.
func (k *keeper) keep(d layer.Digest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(k.until, func(_ layer.Digest, t time.Time) bool { return now.After(t) })
	k.until[d] = now.Add(k.grace)
}

func (k *keeper) kept(d layer.Digest) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	return now.Sub(k.started) < k.grace || now.Before(k.until[d])
}

var errKept = fmt.Errorf("remove layer: %w: it was imported a moment ago; try again later", sandbox.ErrConflict)

// remove answers DELETE /v1/layers/{digest}: 204 = removed, 404 = not there, 409 = imported a moment ago or just now.
func (s *service) remove(w http.ResponseWriter, r *http.Request) {
	d, err := layer.ParseDigest(r.PathValue("digest"))
	if err == nil {
		_, err = within(r.Context(), s.watch, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.removeLayer(ctx, d) })
	}
	if err != nil {
		refuse(w, err)
		return
	}
	s.o.Log.InfoContext(r.Context(), "layer removed", "digest", d)
	w.WriteHeader(http.StatusNoContent)
}

func (s *service) removeLayer(ctx context.Context, d layer.Digest) error {
	if !s.keeper.publishing.TryLock() {
		return errKept
	}
	defer s.keeper.publishing.Unlock()
	if s.keeper.kept(d) {
		return errKept
	}
	return s.store.Delete(ctx, d)
}

// keep answers POST /v1/layers/{digest}/keep: 204 = it is there and is not removed for a while, 404 = it is not there.
func (s *service) keep(w http.ResponseWriter, r *http.Request) {
	d, err := layer.ParseDigest(r.PathValue("digest"))
	if err == nil {
		_, err = within(r.Context(), s.watch, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.keepLayer(ctx, d) })
	}
	if err != nil {
		refuse(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *service) keepLayer(ctx context.Context, d layer.Digest) error {
	s.keeper.publishing.RLock()
	defer s.keeper.publishing.RUnlock()
	if _, err := s.store.Get(ctx, d); err != nil {
		return err
	}
	s.keeper.keep(d)
	return nil
}
