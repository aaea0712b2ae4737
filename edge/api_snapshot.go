package edge

import (
	"context"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
)

// snapshotAPI serves SnapshotService.
type snapshotAPI struct {
	dsecv1connect.UnimplementedSnapshotServiceHandler
	e *Edge
}

// keyHeader tells which key a forwarded request was made with (apiserver.KeyHeader).
const keyHeader = "Dsec-Key-Id"

func (a *snapshotAPI) CreateSnapshot(ctx context.Context, req *dsecv1.CreateSnapshotRequest) (*dsecv1.CreateSnapshotResponse, error) {
	if err := checkLabels(req.Labels); err != nil {
		return nil, wireError(err)
	}
	b, err := a.e.find(req.SandboxId)
	if err != nil {
		return nil, wireError(err)
	}
	x, err := b.take(ctx, snapshotOf{labels: req.Labels, kept: true})
	if err != nil {
		return nil, wireError(err)
	}
	defer a.e.snapshots.release(x)
	return &dsecv1.CreateSnapshotResponse{Snapshot: a.e.snapshots.show(x)}, nil
}

func (a *snapshotAPI) ListSnapshots(_ context.Context, req *dsecv1.ListSnapshotsRequest) (*dsecv1.ListSnapshotsResponse, error) {
	return &dsecv1.ListSnapshotsResponse{Snapshots: a.e.snapshots.list(req)}, nil
}

func (a *snapshotAPI) DeleteSnapshot(_ context.Context, req *dsecv1.DeleteSnapshotRequest) (*dsecv1.DeleteSnapshotResponse, error) {
	s, err := a.e.snapshots.remove(req.SnapshotId)
	if err != nil {
		return nil, wireError(err)
	}
	return &dsecv1.DeleteSnapshotResponse{Snapshot: s}, nil
}

func (a *snapshotAPI) ForkSandbox(ctx context.Context, req *dsecv1.ForkSandboxRequest) (*dsecv1.ForkSandboxResponse, error) {
	keyID := ""
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		keyID = info.RequestHeader().Get(keyHeader)
	}
	results, err := a.e.fork(ctx, req, keyID)
	if err != nil {
		return nil, wireError(err)
	}
	return &dsecv1.ForkSandboxResponse{Results: results}, nil
}

// Pack implements EdgeService.
func (a *sandboxAPI) Pack(ctx context.Context, req *dsecv1.PackRequest, out *connect.ServerStream[dsecv1.PackResponse]) error {
	return wireError(a.e.pack(ctx, req.GetPack(), func(m *dsecv1.PackDiffResponse) error {
		return out.Send(&dsecv1.PackResponse{Step: m})
	}))
}
