package apiserver

import (
	"context"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// Catalogue knows the published layers by kind, name and version. Implementations are safe for concurrent use.
type Catalogue interface {
	// Resolve turns names into layers, bottom to top, and merges what their images say about running them
	// (env, user and workdir; upper wins). Errors: ErrInvalid, ErrNotFound (says which name and what there is),
	// ErrUnavailable.
	Resolve(ctx context.Context, env *dsecv1.Environment) ([]*dsecv1.ResolvedLayer, *dsecv1.ImageConfig, error)
	// Publish makes a layer known under the next version of its kind and name, and returns it with version and
	// time. The same content under the same name returns the version that is there (reused).
	Publish(ctx context.Context, l *dsecv1.Layer) (published *dsecv1.Layer, reused bool, err error)
	List(ctx context.Context, kind dsecv1.LayerKind, name string) ([]*dsecv1.Layer, error)
	// Delete forgets one version, or all when version is empty. Error: ErrNotFound.
	Delete(ctx context.Context, kind dsecv1.LayerKind, name, version string) ([]*dsecv1.Layer, error)
	// Collect calls remove for the layers that lost their last name, until it succeeds.
	Collect(ctx context.Context, remove func(ctx context.Context, digest string) error) error
}
