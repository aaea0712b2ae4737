package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

const (
	// collectEvery is how often layers without a name are looked for, besides after each deletion.
	collectEvery = time.Minute
	// removeTimeout bounds the removal of one layer, publishTimeout the way of a new one into the catalogue. What is
	// new is kept by the importer for longer than both.
	removeTimeout  = 10 * time.Second
	publishTimeout = 25 * time.Second
)

// collect removes the content of layers that nothing names any more, until ctx is done.
func (s *Server) collect(ctx context.Context) {
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		if err := s.o.Catalogue.Collect(ctx, s.importer.remove); err != nil && ctx.Err() == nil {
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
