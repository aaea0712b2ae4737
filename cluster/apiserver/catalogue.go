package apiserver

import (
	"context"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// Catalogue knows the published layers by kind, name and version. Implementations are safe for concurrent use.
type Catalogue interface {
	// Resolve turns names into layers, bottom to top, and merges what their images and a named environment say about
	// running them (upper wins). Errors: ErrInvalid, ErrNotFound (says which name and what there is), ErrUnavailable.
	Resolve(ctx context.Context, env *dsecv1.Environment) (*dsecv1.ResolvedEnvironment, error)
	// Publish makes a layer known under the next version of its kind and name, and returns it with version and
	// time. The same content under the same name returns the version that is there (reused).
	Publish(ctx context.Context, l *dsecv1.Layer) (published *dsecv1.Layer, reused bool, err error)
	List(ctx context.Context, kind dsecv1.LayerKind, name string) ([]*dsecv1.Layer, error)
	// Get returns what NAME, NAME@VERSION, NAME@TAG or a digest means, and the environments that name it.
	Get(ctx context.Context, kind dsecv1.LayerKind, ref string) (*dsecv1.Layer, []string, error)
	// Tag moves a tag to a version, or takes it away.
	Tag(ctx context.Context, kind dsecv1.LayerKind, ref, tag string, remove bool) (*dsecv1.Layer, error)
	// Delete forgets one version, or all when version is empty. Errors: ErrNotFound; ErrFailedPrecondition for what an
	// environment names, unless forced.
	Delete(ctx context.Context, kind dsecv1.LayerKind, name, version string, force bool) ([]*dsecv1.Layer, error)

	// CreateEnvironment keeps a named environment. Errors: ErrAlreadyExists unless replace, ErrNotFound for its layers.
	CreateEnvironment(ctx context.Context, e *dsecv1.NamedEnvironment, replace bool) (*dsecv1.NamedEnvironment, error)
	Environment(ctx context.Context, name string) (*dsecv1.NamedEnvironment, error)
	Environments(ctx context.Context) ([]*dsecv1.NamedEnvironment, error)
	DeleteEnvironment(ctx context.Context, name string) (*dsecv1.NamedEnvironment, error)

	// Step and PutStep keep what steps of builds made; ForgetSteps drops those that nobody asked for for so long,
	// ForgetStepsOf those that made a layer.
	Step(ctx context.Context, key string) (*dsecv1.Layer, error)
	PutStep(ctx context.Context, key string, l *dsecv1.Layer) error
	ForgetSteps(ctx context.Context, age time.Duration) (int, error)
	ForgetStepsOf(ctx context.Context, digest string) (int, error)
	// Named returns the digests that anything in the catalogue refers to.
	Named(ctx context.Context) (map[string]bool, error)
	// Collect calls remove for the layers that lost their last name, until it succeeds.
	Collect(ctx context.Context, remove func(ctx context.Context, digest string) error) error
}
