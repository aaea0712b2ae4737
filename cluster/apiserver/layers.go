package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/sandbox"
)

// importer is the connection to blobd, which turns images and archives into layers. It knows contents; names and
// versions are the catalogue's.
type importer struct {
	base   string
	http   *http.Client
	dial   func(ctx context.Context) (net.Conn, error)
	Layers dsecv1connect.LayerServiceClient
	Store  dsecv1connect.StoreServiceClient
}

func newImporter(endpoint string) (*importer, error) {
	if endpoint == "" {
		return nil, nil
	}
	dial, base, err := dialer(endpoint)
	if err != nil {
		return nil, fmt.Errorf("importer endpoint: %w", err)
	}
	hc := &http.Client{Transport: newTransport(dial)}
	return &importer{base: base, http: hc, dial: dial, Layers: dsecv1connect.NewLayerServiceClient(hc, base, uncompressed),
		Store: dsecv1connect.NewStoreServiceClient(hc, base, uncompressed)}, nil
}

var errNoImporter = fmt.Errorf("layers: %w: this service has no importer", sandbox.ErrUnsupported)

// up tells whether it accepts connections.
func (im *importer) up(ctx context.Context) error {
	if im == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := im.dial(ctx)
	if err != nil {
		return err
	}
	return c.Close()
}

// failed says what a failed call means: a layer is published whole or not at all, so that asking again is safe.
func (im *importer) failed(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("layers: %w", context.Canceled)
	case connect.IsWireError(err):
		return err
	default:
		return fmt.Errorf("layers: %w: the importer does not answer (nothing was published); it is being restarted, try again: %w", sandbox.ErrUnavailable, err)
	}
}

// layerService implements LayerService.
type layerService struct{ s *Server }

func (l layerService) ListLayers(ctx context.Context, r *dsecv1.ListLayersRequest) (*dsecv1.ListLayersResponse, error) {
	layers, err := l.s.o.Catalogue.List(ctx, r.GetKind(), r.GetName())
	if err != nil {
		return nil, connectError(err)
	}
	return &dsecv1.ListLayersResponse{Layers: layers}, nil
}

func (l layerService) DeleteLayer(ctx context.Context, r *dsecv1.DeleteLayerRequest) (*dsecv1.DeleteLayerResponse, error) {
	if r.GetName() == "" {
		return nil, connectError(fmt.Errorf("delete layer: %w: name is missing", sandbox.ErrInvalid))
	}
	gone, err := l.s.forgetting(ctx, r.GetKind(), r.GetName(), r.GetVersion(), func() ([]*dsecv1.Layer, error) {
		return l.s.o.Catalogue.Delete(ctx, r.GetKind(), r.GetName(), r.GetVersion(), r.GetForce())
	})
	if err != nil {
		return nil, connectError(err)
	}
	select {
	case l.s.deleted <- struct{}{}:
	default: // it will look anyway
	}
	l.s.o.Log.Info("layer deleted", "kind", r.GetKind(), "name", r.GetName(), "version", r.GetVersion(), "count", len(gone), "by", keyOf(ctx).ID)
	return &dsecv1.DeleteLayerResponse{Deleted: gone}, nil
}

func (l layerService) ImportLayer(ctx context.Context, r *dsecv1.ImportLayerRequest, out *connect.ServerStream[dsecv1.ImportLayerResponse]) error {
	im := l.s.importer
	if im == nil {
		return connectError(errNoImporter)
	}
	if err := checkOnStart(r.GetOnStart()); err != nil {
		return connectError(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := im.Layers.ImportLayer(ctx, r)
	if err != nil {
		return connectError(im.failed(err))
	}
	defer in.Close()
	for in.Receive() {
		msg := in.Msg()
		if msg.GetLayer() == nil {
			if err := out.Send(&dsecv1.ImportLayerResponse{Progress: msg.GetProgress()}); err != nil {
				return err
			}
			continue
		}
		msg.Layer.OnStart = r.GetOnStart()
		done, err := l.s.publish(ctx, msg)
		if err != nil {
			return connectError(err)
		}
		return out.Send(done)
	}
	if err := in.Err(); err != nil {
		return connectError(im.failed(err))
	}
	return connectError(im.failed(errNoLayer))
}

var errNoLayer = errors.New("the import ended without a layer")

// publish enters an imported layer into the catalogue.
func (s *Server) publish(ctx context.Context, imported *dsecv1.ImportLayerResponse) (*dsecv1.ImportLayerResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if err := s.importer.keep(ctx, imported.GetLayer().GetDigest()); err != nil {
		return nil, fmt.Errorf("publish layer %s: %w", imported.GetLayer().GetName(), err)
	}
	layer, reused, err := s.o.Catalogue.Publish(ctx, imported.GetLayer())
	if err != nil {
		return nil, fmt.Errorf("publish layer %s: %w", imported.GetLayer().GetName(), err)
	}
	s.o.Log.Info("layer published", "kind", layer.GetKind(), "name", layer.GetName(), "version", layer.GetVersion(), "digest", layer.GetDigest(), "by", keyOf(ctx).ID)
	return &dsecv1.ImportLayerResponse{Progress: imported.GetProgress(), Layer: layer, Reused: imported.GetReused() && reused,
		Repaired: imported.GetRepaired()}, nil
}
