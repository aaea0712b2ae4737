package apiserver

import (
	"context"
	"fmt"
	"net/http"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/sandbox"
)

// forwardCall forwards a request about function calls, which belong to no sandbox, to an edge that answers.
func (s *Server) forwardCall(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength > maxMessage {
		s.writeError(w, r, errTooLargeBatch)
		return
	}
	if r.ContentLength < 0 {
		r.Body = http.MaxBytesReader(w, r.Body, maxMessage)
	}
	e, err := s.o.Placement.Pick(r.Context(), nil)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	s.metrics.forwarded.Inc()
	e.proxy.ServeHTTP(w, r)
}

var errTooLargeBatch = fmt.Errorf("request: %w: it is larger than %d bytes: send the calls in several batches", sandbox.ErrInvalid, maxMessage)

// callService implements what concerns all edges; the rest is forwarded.
type callService struct {
	dsecv1connect.UnimplementedFnCallServiceHandler
	s *Server
}

// SetRuntime sets the runtime on every edge.
func (c callService) SetRuntime(ctx context.Context, r *dsecv1.SetRuntimeRequest) (*dsecv1.SetRuntimeResponse, error) {
	for _, e := range c.s.edges.All() {
		if _, err := e.Calls.SetRuntime(ctx, r); err != nil {
			return nil, connectError(e.answered(ctx, err))
		}
	}
	return &dsecv1.SetRuntimeResponse{}, nil
}
