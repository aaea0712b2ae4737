package main

import (
	"context"
	"fmt"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/cluster/apiserver"
	"github.com/opendsec/dsec/sandbox"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// newCatalogue gives the API server the catalogue of layers.
func newCatalogue(*clientv3.Client) apiserver.Catalogue { return noCatalogue{} }

type noCatalogue struct{}

var errNoCatalogue = fmt.Errorf("catalogue: %w: this build has none", sandbox.ErrUnsupported)

func (noCatalogue) Resolve(context.Context, *dsecv1.Environment) ([]*dsecv1.ResolvedLayer, *dsecv1.ImageConfig, error) {
	return nil, nil, errNoCatalogue
}

func (noCatalogue) Publish(context.Context, *dsecv1.Layer) (*dsecv1.Layer, bool, error) {
	return nil, false, errNoCatalogue
}

func (noCatalogue) List(context.Context, dsecv1.LayerKind, string) ([]*dsecv1.Layer, error) {
	return nil, errNoCatalogue
}

func (noCatalogue) Delete(context.Context, dsecv1.LayerKind, string, string) ([]*dsecv1.Layer, error) {
	return nil, errNoCatalogue
}
