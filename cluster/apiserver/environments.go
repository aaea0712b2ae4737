package apiserver

import (
	"context"
	"errors"
	"fmt"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// environmentService implements EnvironmentService.
type environmentService struct{ s *Server }

func (e environmentService) CreateEnvironment(ctx context.Context, r *dsecv1.CreateEnvironmentRequest) (*dsecv1.CreateEnvironmentResponse, error) {
	made, err := e.s.o.Catalogue.CreateEnvironment(ctx, r.GetEnvironment(), r.GetReplace())
	if err != nil {
		return nil, connectError(err)
	}
	e.s.o.Log.Info("environment created", "name", made.GetName(), "by", keyOf(ctx).ID)
	return &dsecv1.CreateEnvironmentResponse{Environment: made}, nil
}

func (e environmentService) ListEnvironments(ctx context.Context, _ *dsecv1.ListEnvironmentsRequest) (*dsecv1.ListEnvironmentsResponse, error) {
	all, err := e.s.o.Catalogue.Environments(ctx)
	if err != nil {
		return nil, connectError(err)
	}
	return &dsecv1.ListEnvironmentsResponse{Environments: all}, nil
}

func (e environmentService) InspectEnvironment(ctx context.Context, r *dsecv1.InspectEnvironmentRequest) (*dsecv1.InspectEnvironmentResponse, error) {
	out, err := e.s.inspect(ctx, r)
	if err != nil {
		return nil, connectError(err)
	}
	return out, nil
}

func (s *Server) inspect(ctx context.Context, r *dsecv1.InspectEnvironmentRequest) (*dsecv1.InspectEnvironmentResponse, error) {
	found, err := s.o.Catalogue.Resolve(ctx, r.GetEnvironment())
	if err != nil {
		return nil, err
	}
	out := &dsecv1.InspectEnvironmentResponse{Config: found.GetConfig()}
	if name := r.GetEnvironment().GetName(); name != "" {
		if out.Environment, err = s.o.Catalogue.Environment(ctx, name); err != nil {
			return nil, err
		}
	}
	for _, l := range found.GetLayers() {
		out.Layers = append(out.Layers, &dsecv1.LayerUse{Layer: l})
	}
	if s.importer == nil {
		return out, nil
	}
	if r.GetPaths() < 0 {
		stored, err := s.importer.stored(ctx, digestsOf(found))
		for n, l := range stored {
			out.Layers[n].MetaBytes, out.Layers[n].DataBytes, out.Layers[n].Files = l.GetMetaBytes(), l.GetDataBytes(), l.GetFiles()
		}
		return out, err
	}
	d, err := s.importer.Store.DescribeStack(ctx, &dsecv1.DescribeStackRequest{Digests: digestsOf(found), Paths: r.GetPaths()})
	if err != nil {
		return nil, s.importer.failed(err)
	}
	for n, l := range d.GetLayers() {
		out.Layers[n].MetaBytes, out.Layers[n].DataBytes, out.Layers[n].Files = l.GetMetaBytes(), l.GetDataBytes(), l.GetFiles()
	}
	out.Hidden = d.GetHidden()
	return out, nil
}

func digestsOf(e *dsecv1.ResolvedEnvironment) []string {
	out := make([]string, len(e.GetLayers()))
	for n, l := range e.GetLayers() {
		out[n] = l.GetDigest()
	}
	return out
}

func (e environmentService) DeleteEnvironment(ctx context.Context, r *dsecv1.DeleteEnvironmentRequest) (*dsecv1.DeleteEnvironmentResponse, error) {
	if r.GetName() == "" {
		return nil, connectError(fmt.Errorf("delete environment: %w: name is missing", sandbox.ErrInvalid))
	}
	gone, err := e.delete(ctx, r.GetName())
	if err != nil {
		return nil, connectError(err)
	}
	e.s.o.Log.Info("environment deleted", "name", r.GetName(), "by", keyOf(ctx).ID)
	return &dsecv1.DeleteEnvironmentResponse{Environment: gone}, nil
}

// delete takes an environment out of the catalogue, and its network default with it; of one that is not there too.
func (e environmentService) delete(ctx context.Context, name string) (*dsecv1.NamedEnvironment, error) {
	rules := e.s.o.Network
	if rules == nil {
		return e.s.o.Catalogue.DeleteEnvironment(ctx, name)
	}
	revision, err := rules.Revision(ctx)
	if err != nil {
		return nil, err
	}
	gone, err := e.s.o.Catalogue.DeleteEnvironment(ctx, name)
	if err == nil || errors.Is(err, sandbox.ErrNotFound) {
		if ferr := rules.Forget(context.WithoutCancel(ctx), revision, "environment/"+name); ferr != nil && err == nil {
			err = fmt.Errorf("environment %s is deleted, but its network default may be left: %w; delete it again", name, ferr)
		}
	}
	return gone, err
}
