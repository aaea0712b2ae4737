package apiserver

import (
	"context"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// What LayerService does with layers that are published: names are the catalogue's, content is the importer's.

// defaultCollapse is how large a collapsed layer gets unless something else is asked for, bytes.
const defaultCollapse = 3 << 30

// stackOf returns the layers of a version, bottom to top.
func stackOf(l *dsecv1.Layer) []string { return append(slices.Clone(l.GetBelow()), l.GetDigest()) }

// stored returns what the store says of layers, in their order. Error: sandbox.ErrNotFound.
func (im *importer) stored(ctx context.Context, digests []string) ([]*dsecv1.StoredLayer, error) {
	if im == nil {
		return nil, errNoImporter
	}
	resp, err := im.Store.ListStored(ctx, &dsecv1.ListStoredRequest{Digests: digests})
	if err != nil {
		return nil, im.failed(err)
	}
	have := map[string]*dsecv1.StoredLayer{}
	for _, l := range resp.GetLayers() {
		have[l.GetDigest()] = l
	}
	out := make([]*dsecv1.StoredLayer, len(digests))
	for n, d := range digests {
		if out[n] = have[d]; out[n] == nil {
			return nil, fmt.Errorf("layer %s: %w in the store", d, sandbox.ErrNotFound)
		}
	}
	return out, nil
}

func (l layerService) GetLayer(ctx context.Context, r *dsecv1.GetLayerRequest) (*dsecv1.GetLayerResponse, error) {
	found, users, err := l.s.o.Catalogue.Get(ctx, r.GetKind(), r.GetReference())
	if err != nil {
		return nil, connectError(err)
	}
	return &dsecv1.GetLayerResponse{Layer: found, Environments: users}, nil
}

func (l layerService) TagLayer(ctx context.Context, r *dsecv1.TagLayerRequest) (*dsecv1.TagLayerResponse, error) {
	at, err := l.s.o.Catalogue.Tag(ctx, r.GetKind(), r.GetReference(), r.GetTag(), r.GetRemove())
	if err != nil {
		return nil, connectError(err)
	}
	l.s.o.Log.Info("layer tagged", "kind", r.GetKind(), "name", r.GetReference(), "tag", r.GetTag(), "removed", r.GetRemove(), "by", keyOf(ctx).ID)
	return &dsecv1.TagLayerResponse{Layer: at}, nil
}

func (l layerService) PublishLayer(ctx context.Context, r *dsecv1.PublishLayerRequest) (*dsecv1.PublishLayerResponse, error) {
	found, reused, err := l.s.publishStack(ctx, r)
	if err != nil {
		return nil, connectError(err)
	}
	return &dsecv1.PublishLayerResponse{Layer: found, Reused: reused}, nil
}

// publishStack gives a stack of layers that the store has a name.
func (s *Server) publishStack(ctx context.Context, r *dsecv1.PublishLayerRequest) (*dsecv1.Layer, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if len(r.GetDigests()) == 0 {
		return nil, false, fmt.Errorf("publish layer: %w: digests are missing", sandbox.ErrInvalid)
	}
	if err := checkOnStart(r.GetOnStart()); err != nil {
		return nil, false, fmt.Errorf("publish layer %s: %w", r.GetName(), err)
	}
	found, err := s.o.Catalogue.Resolve(ctx, &dsecv1.Environment{Layers: r.GetDigests()})
	if err != nil {
		return nil, false, fmt.Errorf("publish layer %s: %w", r.GetName(), err)
	}
	digests := digestsOf(found)
	stored, err := s.importer.stored(ctx, digests)
	if err != nil {
		return nil, false, err
	}
	for _, d := range digests {
		if err := s.importer.keep(ctx, d); err != nil {
			return nil, false, fmt.Errorf("publish layer %s: %w", r.GetName(), err)
		}
	}
	top := len(digests) - 1
	out := &dsecv1.Layer{Kind: r.GetKind(), Name: r.GetName(), Digest: digests[top], Below: digests[:top], Config: r.GetConfig(), OnStart: r.GetOnStart(), Source: r.GetSource()}
	for _, l := range stored { // as a whole: what it takes to have it
		out.MetaBytes += l.GetMetaBytes()
		out.DataBytes += l.GetDataBytes()
		out.Files += l.GetFiles()
	}
	made, reused, err := s.o.Catalogue.Publish(ctx, out)
	if err != nil {
		return nil, false, err
	}
	s.o.Log.Info("layer published", "kind", made.GetKind(), "name", made.GetName(), "version", made.GetVersion(), "layers", len(digests), "by", keyOf(ctx).ID)
	return made, reused, nil
}

func checkOnStart(o *dsecv1.OnStart) error {
	switch {
	case o == nil:
		return nil
	case len(o.GetArgv()) == 0 || o.GetArgv()[0] == "":
		return fmt.Errorf("on_start: %w: it has no program", sandbox.ErrInvalid)
	case !(o.GetTimeoutSeconds() >= 0 && o.GetTimeoutSeconds() <= 3600):
		return fmt.Errorf("on_start: %w: timeout_seconds is %v: want at most 3600, or 0 for 60", sandbox.ErrInvalid, o.GetTimeoutSeconds())
	}
	size := 0
	for _, a := range o.GetArgv() {
		size += len(a)
	}
	if size > 64<<10 {
		return fmt.Errorf("on_start: %w: its arguments have %d bytes, at most 64 KiB: put them into a file of the layer", sandbox.ErrInvalid, size)
	}
	return nil
}

func (l layerService) DiffLayers(ctx context.Context, r *dsecv1.DiffLayersRequest, out *connect.ServerStream[dsecv1.DiffLayersResponse]) error {
	im := l.s.importer
	if im == nil {
		return connectError(errNoImporter)
	}
	req := &dsecv1.DiffStacksRequest{Contents: r.GetContents(), Limit: r.GetLimit()}
	for _, side := range []struct {
		ref string
		to  *[]string
	}{{r.GetFrom(), &req.From}, {r.GetTo(), &req.To}} {
		found, _, err := l.s.o.Catalogue.Get(ctx, r.GetKind(), side.ref)
		if err != nil {
			return connectError(err)
		}
		*side.to = stackOf(found)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := im.Store.DiffStacks(ctx, req)
	if err != nil {
		return connectError(im.failed(err))
	}
	defer in.Close()
	for in.Receive() {
		if err := out.Send(&dsecv1.DiffLayersResponse{Changes: in.Msg().GetChanges()}); err != nil {
			return err
		}
	}
	if err := in.Err(); err != nil {
		return connectError(im.failed(err))
	}
	return nil
}

func (l layerService) CollapseLayer(ctx context.Context, r *dsecv1.CollapseLayerRequest, out *connect.ServerStream[dsecv1.CollapseLayerResponse]) error {
	if err := l.s.collapse(ctx, r, out.Send); err != nil {
		return connectError(err)
	}
	return nil
}

// collapse makes a version of fewer layers and publishes it.
func (s *Server) collapse(ctx context.Context, r *dsecv1.CollapseLayerRequest, send func(*dsecv1.CollapseLayerResponse) error) error {
	if s.importer == nil {
		return errNoImporter
	}
	if r.GetMaxBytes() < 0 {
		return fmt.Errorf("collapse: %w: max_bytes is %d", sandbox.ErrInvalid, r.GetMaxBytes())
	}
	most := r.GetMaxBytes()
	if most == 0 {
		most = defaultCollapse
	}
	found, _, err := s.o.Catalogue.Get(ctx, r.GetKind(), r.GetReference())
	if err != nil {
		return err
	}
	stack := stackOf(found)
	stored, err := s.importer.stored(ctx, stack)
	if err != nil {
		return err
	}
	var made []string
	for _, group := range groups(stored, most) {
		if len(group) == 1 {
			made = append(made, group[0])
			continue
		}
		d, err := s.collapseGroup(ctx, group, found.GetName(), send)
		if err != nil {
			return err
		}
		made = append(made, d)
	}
	last := &dsecv1.CollapseLayerResponse{Layer: found, LayersBefore: int32(len(stack)), LayersAfter: int32(len(made))}
	if len(made) < len(stack) {
		pub, cancel := context.WithTimeout(ctx, publishTimeout)
		defer cancel()
		stored, err := s.importer.stored(pub, made)
		if err != nil {
			return err
		}
		top := len(made) - 1
		next := &dsecv1.Layer{Kind: found.GetKind(), Name: found.GetName(), Digest: made[top], Below: made[:top], Config: found.GetConfig(), OnStart: found.GetOnStart(), Source: found.GetSource()}
		for n, l := range stored {
			if err := s.importer.keep(pub, made[n]); err != nil {
				return err
			}
			next.MetaBytes += l.GetMetaBytes()
			next.DataBytes += l.GetDataBytes()
			next.Files += l.GetFiles()
		}
		if last.Layer, _, err = s.o.Catalogue.Publish(pub, next); err != nil {
			return err
		}
		s.o.Log.Info("layer collapsed", "name", found.GetName(), "from", found.GetVersion(), "to", last.Layer.GetVersion(), "layers", len(made), "of", len(stack), "by", keyOf(ctx).ID)
	}
	return send(last)
}

// groups puts consecutive layers together as long as they are not larger than most.
func groups(stored []*dsecv1.StoredLayer, most int64) [][]string {
	var out [][]string
	var size int64
	for _, l := range stored {
		n := l.GetMetaBytes() + l.GetDataBytes()
		if len(out) == 0 || size+n > most {
			out, size = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], l.GetDigest())
		size += n
	}
	return out
}

func (s *Server) collapseGroup(ctx context.Context, digests []string, name string, send func(*dsecv1.CollapseLayerResponse) error) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := s.importer.Store.CollapseStack(ctx, &dsecv1.CollapseStackRequest{Digests: digests, Name: name})
	if err != nil {
		return "", s.importer.failed(err)
	}
	defer in.Close()
	for in.Receive() {
		if d := in.Msg().GetLayer().GetDigest(); d != "" {
			return d, nil
		}
		if err := send(&dsecv1.CollapseLayerResponse{Progress: in.Msg().GetProgress()}); err != nil {
			return "", err
		}
	}
	if err := in.Err(); err != nil {
		return "", s.importer.failed(err)
	}
	return "", s.importer.failed(errNoLayer)
}

func (l layerService) GetStep(ctx context.Context, r *dsecv1.GetStepRequest) (*dsecv1.GetStepResponse, error) {
	found, err := l.s.o.Catalogue.Step(ctx, r.GetKey())
	if err != nil {
		return nil, connectError(err)
	}
	return &dsecv1.GetStepResponse{Layer: found}, nil
}

func (l layerService) PutStep(ctx context.Context, r *dsecv1.PutStepRequest) (*dsecv1.PutStepResponse, error) {
	if l.s.importer == nil {
		return nil, connectError(errNoImporter)
	}
	if err := l.s.putStep(ctx, r.GetKey(), r.GetLayer()); err != nil {
		return nil, connectError(err)
	}
	return &dsecv1.PutStepResponse{}, nil
}

func (l layerService) ReadStack(ctx context.Context, r *dsecv1.ReadStackRequest) (*dsecv1.ReadStackResponse, error) {
	if l.s.importer == nil {
		return nil, connectError(errNoImporter)
	}
	if _, err := l.s.o.Catalogue.Resolve(ctx, &dsecv1.Environment{Layers: r.GetDigests()}); err != nil && len(r.GetDigests()) > 0 {
		return nil, connectError(err)
	}
	resp, err := l.s.importer.Store.ReadStored(ctx, &dsecv1.ReadStoredRequest{Read: r})
	if err != nil {
		return nil, connectError(l.s.importer.failed(err))
	}
	return resp.GetFound(), nil
}

func (l layerService) CollectLayers(ctx context.Context, r *dsecv1.CollectLayersRequest) (*dsecv1.CollectLayersResponse, error) {
	if l.s.importer == nil {
		return nil, connectError(errNoImporter)
	}
	age := 7 * 24 * time.Hour
	switch s := r.GetStepsSeconds(); {
	case s > 0:
		age = time.Duration(min(s, 1e9) * float64(time.Second))
	case s < 0:
		age = 0
	}
	out, err := l.s.sweep(ctx, r.GetDryRun(), age)
	if err != nil {
		return nil, connectError(err)
	}
	if !r.GetDryRun() {
		l.s.o.Log.Info("layers collected", "removed", len(out.Removed), "bytes", out.RemovedBytes, "kept", len(out.Kept), "by", keyOf(ctx).ID)
	}
	return out, nil
}
