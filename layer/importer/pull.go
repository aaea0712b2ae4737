package importer

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/oci"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/sandbox"
)

// ImportLayer pulls an image from a registry.
func (s *service) ImportLayer(ctx context.Context, r *dsecv1.ImportLayerRequest, stream *connect.ServerStream[dsecv1.ImportLayerResponse]) error {
	if err := s.pull(ctx, r, stream.Send); err != nil {
		return connect.NewError(code(err), err)
	}
	return nil
}

func (s *service) pull(ctx context.Context, r *dsecv1.ImportLayerRequest, send func(*dsecv1.ImportLayerResponse) error) error {
	if r.GetSource() == "" {
		return fmt.Errorf("import: %w: source is missing; want docker://HOST/NAME:TAG", sandbox.ErrInvalid)
	}
	source, err := oci.Canonical(r.GetSource())
	if err != nil {
		return err
	}
	name := r.GetName()
	if name == "" {
		if name, err = oci.SuggestName(source); err != nil {
			return err
		}
	}
	registry := s.o.Registry
	registry.Insecure = registry.Insecure || r.GetInsecure()
	j := &job{kind: r.GetKind(), name: name, source: source,
		fill: func(ctx context.Context, b *tree.Builder, dir string, p oci.Progress) (layer.Config, error) {
			img, err := oci.Pull(ctx, source, registry)
			if err != nil {
				return layer.Config{}, err
			}
			p("pull", 0, img.Size)
			// The compressed layers, what they unpack to (at a usual ratio), and what must stay free.
			if err := tree.CheckSpace(dir, 4*img.Size+s.o.MinFree); err != nil {
				return layer.Config{}, err
			}
			return img.Config, img.AddTo(ctx, b, dir, p)
		}}
	if err := j.check(); err != nil {
		return err
	}
	return s.do(ctx, j, send)
}
