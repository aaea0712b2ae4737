package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/sandbox"
)

// snapshotService implements the methods of SnapshotService that are more than forwarded.
type snapshotService struct {
	dsecv1connect.UnimplementedSnapshotServiceHandler
	s *Server
}

// handleSnapshots adds SnapshotService. What concerns one sandbox or snapshot goes to its edge.
func (s *Server) handleSnapshots(mux *http.ServeMux, opts []connect.HandlerOption) {
	path, h := dsecv1connect.NewSnapshotServiceHandler(snapshotService{s: s}, opts...)
	mux.HandleFunc(path, s.forwardRPC)
	for _, p := range []string{
		dsecv1connect.SnapshotServiceListSnapshotsProcedure,
		dsecv1connect.SnapshotServiceDeleteSnapshotProcedure,
		dsecv1connect.SnapshotServicePackDiffProcedure,
	} {
		mux.Handle(p, h)
	}
}

// ListSnapshots asks all edges: there are few snapshots, and they are listed in one page.
func (sn snapshotService) ListSnapshots(ctx context.Context, r *dsecv1.ListSnapshotsRequest) (*dsecv1.ListSnapshotsResponse, error) {
	out := &dsecv1.ListSnapshotsResponse{}
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for _, e := range sn.s.edges.All() {
		wg.Go(func() {
			resp, err := e.Snapshots.ListSnapshots(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, e.answered(ctx, err))
				return
			}
			out.Snapshots = append(out.Snapshots, resp.GetSnapshots()...)
		})
	}
	wg.Wait()
	if len(errs) > 0 {
		return nil, connectError(fmt.Errorf("list snapshots: %w", errors.Join(errs...)))
	}
	slices.SortStableFunc(out.Snapshots, func(a, b *dsecv1.Snapshot) int { return b.CreatedAt.AsTime().Compare(a.CreatedAt.AsTime()) })
	return out, nil
}

// DeleteSnapshot goes to the edge that the id encodes.
func (sn snapshotService) DeleteSnapshot(ctx context.Context, r *dsecv1.DeleteSnapshotRequest) (*dsecv1.DeleteSnapshotResponse, error) {
	e, err := sn.s.snapshotEdge(ctx, r.GetSnapshotId())
	if err != nil {
		return nil, connectError(err)
	}
	resp, err := e.Snapshots.DeleteSnapshot(ctx, r)
	if err != nil {
		return nil, connectError(e.answered(ctx, err))
	}
	return resp, nil
}

// snapshotEdge finds the edge of a snapshot.
func (s *Server) snapshotEdge(ctx context.Context, snapshot string) (*Edge, error) {
	id, err := sandbox.ParseSnapshotID(snapshot)
	if err != nil {
		return nil, err
	}
	return s.edges.Find(ctx, id.Edge())
}

// PackDiff has the edge make the layer, and enters it into the catalogue.
func (sn snapshotService) PackDiff(ctx context.Context, r *dsecv1.PackDiffRequest, out *connect.ServerStream[dsecv1.PackDiffResponse]) error {
	e, err := sn.s.snapshotEdge(ctx, r.GetSandboxId())
	if err != nil {
		var id sandbox.ID
		if id, err = sandbox.ParseID(r.GetSandboxId()); err == nil {
			e, err = sn.s.edges.Find(ctx, id.Edge())
		}
	}
	if err != nil {
		return connectError(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := e.Admin.Pack(ctx, &dsecv1.PackRequest{Pack: r})
	if err != nil {
		return connectError(e.answered(ctx, err))
	}
	defer in.Close()
	for in.Receive() {
		step := in.Msg().GetStep()
		result := step.GetResult()
		if result == nil {
			if err := out.Send(step); err != nil {
				return err
			}
			continue
		}
		done, err := sn.s.publish(ctx, &dsecv1.ImportLayerResponse{Layer: result.GetLayer(), Reused: result.GetReused()})
		if err != nil {
			return connectError(err)
		}
		result.Layer, result.Reused = done.GetLayer(), done.GetReused()
		return out.Send(&dsecv1.PackDiffResponse{Result: result})
	}
	if err := in.Err(); err != nil {
		return connectError(e.answered(ctx, err))
	}
	return connectError(fmt.Errorf("pack: %w: it ended without a result; try again", sandbox.ErrUnavailable))
}
