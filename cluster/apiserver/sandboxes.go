package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/sandbox"
	"google.golang.org/protobuf/proto"
)

const (
	defaultPage = 100
	maxPage     = 1000
	maxCount    = 1000
)

// sandboxService implements the methods of SandboxService that concern no single sandbox; the others are
// forwarded and never get here.
type sandboxService struct {
	dsecv1connect.UnimplementedSandboxServiceHandler
	s *Server
}

func (sb sandboxService) CreateSandbox(ctx context.Context, r *dsecv1.CreateSandboxRequest) (*dsecv1.CreateSandboxResponse, error) {
	if r.GetSpec() == nil {
		return nil, connectError(fmt.Errorf("create sandbox: %w: spec is missing", sandbox.ErrInvalid))
	}
	if n := r.GetCount(); n < 0 || n > maxCount {
		return nil, connectError(fmt.Errorf("create sandbox: count %d: %w: want 1 to %d", n, sandbox.ErrInvalid, maxCount))
	}
	req := &dsecv1.CreateResolvedRequest{Create: r, KeyId: keyOf(ctx).ID, Project: projectOf(ctx)}
	if r.GetSpec().GetPrivateNetwork() != "" && len(sb.s.edges.All()) > 1 {
		return nil, connectError(fmt.Errorf("create sandbox: private_network: %w: it does not reach from node to node, and this service has %d", sandbox.ErrUnsupported, len(sb.s.edges.All())))
	}
	// The fake driver mounts nothing: it alone may do without an environment.
	if env := r.GetSpec().GetEnvironment(); env.GetSnapshot() != "" {
		return sb.fromSnapshot(ctx, req)
	} else if r.GetSpec().GetBackend() != dsecv1.Backend_BACKEND_FAKE || proto.Size(env) > 0 {
		found, err := sb.s.o.Catalogue.Resolve(ctx, env)
		if err != nil {
			return nil, connectError(err)
		}
		cfg := found.GetConfig()
		req.Layers, req.ImageEnv, req.ImageUser, req.ImageWorkdir = found.GetLayers(), cfg.GetEnv(), cfg.GetUser(), cfg.GetWorkdir()
		req.DefaultLimits = found.GetLimits()
	}
	if n := sb.s.o.Network; n != nil {
		var err error
		if req.Ceiling, req.CeilingsRevision, req.NetworkDefaults, err = n.Of(ctx, req.Project, r.GetSpec().GetEnvironment().GetName(), req.Layers); err != nil {
			return nil, connectError(err)
		}
	}
	e, err := sb.s.o.Placement.Pick(ctx, r.GetSpec())
	if err != nil {
		return nil, connectError(err)
	}
	return create(ctx, e, req)
}

// fromSnapshot creates where the snapshot is.
func (sb sandboxService) fromSnapshot(ctx context.Context, req *dsecv1.CreateResolvedRequest) (*dsecv1.CreateSandboxResponse, error) {
	e, err := sb.s.snapshotEdge(ctx, req.GetCreate().GetSpec().GetEnvironment().GetSnapshot())
	if err != nil {
		return nil, connectError(err)
	}
	return create(ctx, e, req)
}

// create has an edge create.
func create(ctx context.Context, e *Edge, req *dsecv1.CreateResolvedRequest) (*dsecv1.CreateSandboxResponse, error) {
	resp, err := e.Admin.CreateResolved(ctx, req)
	if err != nil {
		return nil, connectError(e.answered(ctx, err))
	}
	if ctx.Err() != nil && req.GetCreate().GetIdempotencyKey() == "" {
		e.stopUnknown(ctx, resp.GetResponse())
	}
	return resp.GetResponse(), nil
}

// stopTimeout bounds how long a creation whose creator left is followed.
const stopTimeout = 10 * time.Second

// stopUnknown stops sandboxes of which their creator, who left no key to ask again with, will never learn.
func (e *Edge) stopUnknown(ctx context.Context, made *dsecv1.CreateSandboxResponse) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	for _, r := range made.GetResults() {
		if id := r.GetSandbox().GetId(); id != "" {
			_, _ = e.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: id}) // its TTL is the last resort
		}
	}
}

// ListSandboxes goes from edge to edge, newest first within each; the page token is EDGE:TOKEN.
func (sb sandboxService) ListSandboxes(ctx context.Context, r *dsecv1.ListSandboxesRequest) (*dsecv1.ListSandboxesResponse, error) {
	want := int(r.GetPageSize())
	switch {
	case want < 0 || want > maxPage:
		return nil, connectError(fmt.Errorf("page size %d: %w: want 1 to %d", want, sandbox.ErrInvalid, maxPage))
	case want == 0:
		want = defaultPage
	}
	edges, token, err := sb.s.edges.from(ctx, r.GetPageToken())
	if err != nil {
		return nil, connectError(err)
	}
	out := &dsecv1.ListSandboxesResponse{}
	for i, e := range edges {
		resp, err := e.Sandboxes.ListSandboxes(ctx, &dsecv1.ListSandboxesRequest{
			Labels: r.GetLabels(), States: r.GetStates(), PageSize: int32(want - len(out.Sandboxes)), PageToken: token,
		})
		if err != nil {
			return nil, connectError(fmt.Errorf("list sandboxes: %w", e.answered(ctx, err)))
		}
		out.Sandboxes = append(out.Sandboxes, resp.GetSandboxes()...)
		token = ""
		if next := resp.GetNextPageToken(); next != "" {
			out.NextPageToken = string(e.ID()) + ":" + next
			break
		}
		if len(out.Sandboxes) >= want && i+1 < len(edges) {
			out.NextPageToken = string(edges[i+1].ID()) + ":"
			break
		}
	}
	return out, nil
}

// from returns the edges from the one that a page token names on, in the order of the endpoints, and that edge's
// own token.
func (es *Edges) from(ctx context.Context, pageToken string) ([]*Edge, string, error) {
	for _, e := range es.all {
		if e.ID() == "" { // a page could not name it
			if err := e.Up(); err != nil {
				if err = e.probe(ctx); err != nil {
					return nil, "", fmt.Errorf("list sandboxes: %w", err)
				}
			}
		}
	}
	if pageToken == "" {
		return es.all, "", nil
	}
	id, token, ok := strings.Cut(pageToken, ":")
	for i, e := range es.all {
		if ok && string(e.ID()) == id {
			return es.all[i:], token, nil
		}
	}
	return nil, "", fmt.Errorf("page token %.40q: %w: it is not one that a list returned", pageToken, sandbox.ErrInvalid)
}

func (sb sandboxService) StopSandboxes(ctx context.Context, r *dsecv1.StopSandboxesRequest) (*dsecv1.StopSandboxesResponse, error) {
	if len(r.GetLabels()) == 0 {
		return nil, connectError(fmt.Errorf("stop sandboxes: %w: at least one label is needed", sandbox.ErrInvalid))
	}
	out := &dsecv1.StopSandboxesResponse{}
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for _, e := range sb.s.edges.All() {
		wg.Go(func() {
			resp, err := e.Sandboxes.StopSandboxes(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, e.answered(ctx, err))
				return
			}
			out.StoppedIds = append(out.StoppedIds, resp.GetStoppedIds()...)
		})
	}
	wg.Wait()
	if len(errs) > 0 {
		return nil, connectError(fmt.Errorf("stop sandboxes: %d were stopped, ask again for the rest: %w", len(out.StoppedIds), errors.Join(errs...)))
	}
	return out, nil
}

// StreamEvents by label merges the streams of all edges. It ends when all have ended, or with the first error.
func (sb sandboxService) StreamEvents(ctx context.Context, r *dsecv1.StreamEventsRequest, out *connect.ServerStream[dsecv1.StreamEventsResponse]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	edges := sb.s.edges.All()
	// Unbuffered: a slow client holds up the edges' streams, which bound what they queue.
	events, ends := make(chan *dsecv1.StreamEventsResponse), make(chan error, len(edges))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, e := range edges {
		wg.Go(func() { ends <- e.stream(ctx, r, events) })
	}
	// Headers go out now: a follower of quiet sandboxes is connected all the same.
	if err := out.Send(nil); err != nil {
		return err
	}
	for left := len(edges); left > 0; {
		select {
		case ev := <-events:
			if err := out.Send(ev); err != nil {
				return err
			}
		case err := <-ends:
			if err != nil {
				return connectError(err)
			}
			left--
		}
	}
	return nil
}

func (e *Edge) stream(ctx context.Context, r *dsecv1.StreamEventsRequest, events chan<- *dsecv1.StreamEventsResponse) error {
	in, err := e.Sandboxes.StreamEvents(ctx, r)
	if err != nil {
		return fmt.Errorf("stream events: %w", e.answered(ctx, err))
	}
	defer in.Close()
	for in.Receive() {
		msg := in.Msg()
		select {
		case events <- &dsecv1.StreamEventsResponse{Event: msg.GetEvent()}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("stream events: %w", e.answered(ctx, err))
	}
	return nil
}
