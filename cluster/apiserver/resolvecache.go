package apiserver

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/cluster/engine"
	"github.com/opendsec/dsec/sandbox"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
)

const (
	// maxResolved bounds the environments in memory.
	maxResolved = 10000
	// resolveFresh is how long the last sign of life keeps what is in memory exact.
	resolveFresh = 3 * time.Second
	// resolveGrace is how long environments in memory are good while the engine cannot be reached.
	resolveGrace = 10 * time.Minute
)

// ResolveCache remembers what a Catalogue resolved, so that a creation costs no question to the engine, and
// that known environments go on while it is away. It follows the catalogue's keys and forgets everything when
// one of them changes. What is published or deleted here is seen here at once, elsewhere a moment later.
type ResolveCache struct {
	Catalogue
	etcd   *clientv3.Client
	prefix string
	log    *slog.Logger

	mu      sync.Mutex
	age     int64 // counts the times that everything was forgotten
	contact time.Time
	known   map[string]resolved
}

type resolved struct {
	env *dsecv1.ResolvedEnvironment
	age int64
}

// NewResolveCache caches c, whose keys lie under prefix. It is of use while Run runs.
func NewResolveCache(c Catalogue, etcd *clientv3.Client, prefix string, log *slog.Logger) *ResolveCache {
	return &ResolveCache{Catalogue: c, etcd: etcd, prefix: prefix, log: log, known: map[string]resolved{}}
}

// Run follows the catalogue's keys until ctx is done.
func (r *ResolveCache) Run(ctx context.Context) {
	engine.Follow(ctx, r.etcd, r.prefix, (*resolveFollower)(r), r.log)
}

type resolveFollower ResolveCache

func (f *resolveFollower) Load(*clientv3.GetResponse) { (*ResolveCache)(f).forget(true) }

func (f *resolveFollower) Apply(events []*clientv3.Event) {
	(*ResolveCache)(f).forget(len(events) > 0)
}

// forget takes a sign of life; with changed, nothing in memory is exact any more (it still serves while the
// engine is away).
func (r *ResolveCache) forget(changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.contact = time.Now()
	if changed {
		r.age++
	}
}

// Resolve implements Catalogue. The results are shared: callers do not change them.
func (r *ResolveCache) Resolve(ctx context.Context, env *dsecv1.Environment) (*dsecv1.ResolvedEnvironment, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(env)
	if err != nil {
		return r.Catalogue.Resolve(ctx, env)
	}
	key := string(b)
	r.mu.Lock()
	have, known := r.known[key]
	age, silent := r.age, time.Since(r.contact)
	r.mu.Unlock()
	if known && have.age == age && silent < resolveFresh {
		return have.env, nil
	}
	found, err := r.Catalogue.Resolve(ctx, env)
	switch {
	case err == nil:
		r.remember(key, resolved{found, age})
	case errors.Is(err, sandbox.ErrUnavailable) && known && silent < resolveGrace:
		return have.env, nil
	}
	return found, err
}

func (r *ResolveCache) remember(key string, v resolved) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxResolved {
		maps.DeleteFunc(r.known, func(_ string, v resolved) bool { return v.age != r.age })
		if len(r.known) >= maxResolved {
			clear(r.known)
		}
	}
	r.known[key] = v // with an age that has passed meanwhile it is only good for the grace
}

// Publish implements Catalogue.
func (r *ResolveCache) Publish(ctx context.Context, l *dsecv1.Layer) (*dsecv1.Layer, bool, error) {
	defer r.bump()
	return r.Catalogue.Publish(ctx, l)
}

// Delete implements Catalogue.
func (r *ResolveCache) Delete(ctx context.Context, kind dsecv1.LayerKind, name, version string, force bool) ([]*dsecv1.Layer, error) {
	defer r.bump()
	return r.Catalogue.Delete(ctx, kind, name, version, force)
}

// Tag implements Catalogue.
func (r *ResolveCache) Tag(ctx context.Context, kind dsecv1.LayerKind, ref, tag string, remove bool) (*dsecv1.Layer, error) {
	defer r.bump()
	return r.Catalogue.Tag(ctx, kind, ref, tag, remove)
}

// CreateEnvironment implements Catalogue.
func (r *ResolveCache) CreateEnvironment(ctx context.Context, e *dsecv1.NamedEnvironment, replace bool) (*dsecv1.NamedEnvironment, error) {
	defer r.bump()
	return r.Catalogue.CreateEnvironment(ctx, e, replace)
}

// DeleteEnvironment implements Catalogue.
func (r *ResolveCache) DeleteEnvironment(ctx context.Context, name string) (*dsecv1.NamedEnvironment, error) {
	defer r.bump()
	return r.Catalogue.DeleteEnvironment(ctx, name)
}

func (r *ResolveCache) bump() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.age++
}
