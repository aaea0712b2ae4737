package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

const (
	// collectEvery is how often layers without a name are looked for, besides after each deletion.
	collectEvery = time.Minute
	// removeTimeout bounds the removal of one layer, publishTimeout the way of a new one into the catalogue. What is
	// new is kept by the importer for longer than both.
	removeTimeout  = 10 * time.Second
	publishTimeout = 25 * time.Second
	// stepAge is for how long a step of a build that nobody asks for is kept.
	stepAge = 7 * 24 * time.Hour
)

// nameless remembers since when layers have been seen without a name.
type nameless struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// old tells whether a layer has been without a name for so long.
func (n *nameless) old(digest string, grace time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.since == nil {
		n.since = map[string]time.Time{}
	}
	now := time.Now()
	maps.DeleteFunc(n.since, func(_ string, t time.Time) bool { return now.Sub(t) > grace+time.Hour })
	since, ok := n.since[digest]
	if !ok {
		n.since[digest] = now
		return grace <= 0
	}
	return now.Sub(since) >= grace
}

// inUse counts the sandboxes and snapshots of every layer, as all edges tell. An edge that does not answer is an error: what it has is
// not known, and unknown is not unused.
func (s *Server) inUse(ctx context.Context) (map[string]int, error) {
	out := map[string]int{}
	for _, e := range s.edges.All() {
		for token := ""; ; {
			resp, err := e.Sandboxes.ListSandboxes(ctx, &dsecv1.ListSandboxesRequest{PageSize: maxPage, PageToken: token})
			if err != nil {
				return nil, fmt.Errorf("what runs on edge %s: %w", e.ID(), e.answered(ctx, err))
			}
			for _, b := range resp.GetSandboxes() {
				for _, d := range b.GetLayers() {
					out[d]++
				}
			}
			if token = resp.GetNextPageToken(); token == "" {
				break
			}
		}
		resp, err := e.Snapshots.ListSnapshots(ctx, &dsecv1.ListSnapshotsRequest{All: true})
		if err != nil {
			return nil, fmt.Errorf("snapshots of edge %s: %w", e.ID(), e.answered(ctx, err))
		}
		for _, sn := range resp.GetSnapshots() {
			for _, d := range sn.GetLayers() {
				out[d]++
			}
		}
	}
	return out, nil
}

// removeUnused returns a function that removes layers of which no sandbox is made. Error: sandbox.ErrConflict for those
// that have to stay for now.
func (s *Server) removeUnused() func(ctx context.Context, digest string) error {
	var used map[string]int
	return func(ctx context.Context, digest string) error {
		if !s.nameless.old(digest, s.o.CollectGrace) {
			return fmt.Errorf("%w: it had a name a moment ago", sandbox.ErrConflict)
		}
		if used == nil {
			var err error
			if used, err = s.inUse(ctx); err != nil {
				return err
			}
		}
		if n := used[digest]; n > 0 {
			return fmt.Errorf("%w: %d running sandboxes or snapshots are made of it", sandbox.ErrConflict, n)
		}
		return s.importer.remove(ctx, digest)
	}
}

// sweep looks at every layer of the store and removes those that nothing refers to.
func (s *Server) sweep(ctx context.Context, dryRun bool, age time.Duration) (*dsecv1.CollectLayersResponse, error) {
	out := &dsecv1.CollectLayersResponse{}
	if !dryRun {
		n, err := s.o.Catalogue.ForgetSteps(ctx, age)
		if err != nil {
			return nil, err
		}
		out.ForgottenSteps = int32(n)
	}
	// The content first: what is published after this is named, or kept by the importer.
	resp, err := s.importer.Store.ListStored(ctx, &dsecv1.ListStoredRequest{})
	if err != nil {
		return nil, s.importer.failed(err)
	}
	named, err := s.o.Catalogue.Named(ctx)
	if err != nil {
		return nil, err
	}
	used, err := s.inUse(ctx)
	if err != nil {
		return nil, err
	}
	remove := s.removeUnused()
	for _, l := range resp.GetLayers() {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		d := l.GetDigest()
		if named[d] {
			continue
		}
		switch {
		case used[d] > 0:
			err = fmt.Errorf("%d running sandboxes or snapshots are made of it", used[d])
		case dryRun:
			err = nil
		default:
			err = remove(ctx, d)
		}
		switch {
		case errors.Is(err, sandbox.ErrNotFound):
		case err != nil:
			out.Kept = append(out.Kept, &dsecv1.KeptLayer{Digest: d, Why: err.Error()})
		default:
			out.Removed = append(out.Removed, d)
			out.RemovedBytes += l.GetMetaBytes() + l.GetDataBytes()
		}
	}
	return out, nil
}

// collect removes the content of layers that nothing names any more, until ctx is done.
func (s *Server) collect(ctx context.Context) {
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		if _, err := s.o.Catalogue.ForgetSteps(ctx, stepAge); err != nil && ctx.Err() == nil {
			s.o.Log.Info("steps of builds are kept for now", "why", err)
		}
		if err := s.o.Catalogue.Collect(ctx, s.removeUnused()); err != nil && ctx.Err() == nil {
			s.o.Log.Info("layers without a name are kept for now", "why", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.deleted:
		}
	}
}

// remove removes a layer's content. Errors: sandbox.ErrNotFound, ErrConflict when it was imported a moment ago.
func (im *importer) remove(ctx context.Context, digest string) error {
	return im.ask(ctx, http.MethodDelete, digest, removeTimeout)
}

// keep makes sure that an imported layer is there and stays until the catalogue names it.
func (im *importer) keep(ctx context.Context, digest string) error {
	err := im.ask(ctx, http.MethodPost, digest+"/keep", removeTimeout)
	if errors.Is(err, sandbox.ErrNotFound) {
		return fmt.Errorf("%w: the layer was deleted meanwhile; import it again", sandbox.ErrUnavailable)
	}
	return err
}

func (im *importer) ask(ctx context.Context, method, path string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, im.base+"/v1/layers/"+path, nil)
	if err != nil {
		return err
	}
	resp, err := im.http.Do(req)
	if err != nil {
		return fmt.Errorf("layer: %w: the importer does not answer: %w", sandbox.ErrUnavailable, err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxLine))
	switch resp.StatusCode {
	case http.StatusNoContent:
		return nil
	case http.StatusNotFound:
		return fmt.Errorf("layer: %w", sandbox.ErrNotFound)
	case http.StatusConflict:
		return fmt.Errorf("layer: %w: it was imported a moment ago", sandbox.ErrConflict)
	}
	return fmt.Errorf("layer: %w: the importer answers %s", sandbox.ErrUnavailable, resp.Status)
}
