package importer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/oci"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/sandbox"
)

// Options of the service. Zero fields get defaults.
type Options struct {
	Log     *slog.Logger  // nil = discarded
	Limits  tree.Limits   // of one layer
	MinFree int64         // bytes that stay free on the store's disk; 0 = 1 GiB
	Imports int           // at work at a time; 0 = 2
	Queue   int           // waiting for their turn; 0 = 32
	Timeout time.Duration // of one import, the wait included; 0 = 2 hours
	Stall   time.Duration // how long an upload may stand still; 0 = 2 minutes
	Grace   time.Duration // how long what was imported is kept until a catalogue names it; 0 = 1 minute
	// StoreTimeout is for how long a store's mount may stand still; 0 = 30 seconds.
	StoreTimeout time.Duration
	Registry     oci.RegistryOptions
	Now          func() time.Time // nil = time.Now
}

func (o Options) orDefault() Options {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&o.Imports, 2)
	set(&o.Queue, 32)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MinFree == 0 {
		o.MinFree = 1 << 30
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Hour
	}
	if o.Stall == 0 {
		o.Stall = 2 * time.Minute
	}
	if o.Grace == 0 {
		o.Grace = time.Minute
	}
	if o.StoreTimeout == 0 {
		o.StoreTimeout = 30 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// service implements the import half of LayerService.
type service struct {
	dsecv1connect.UnimplementedLayerServiceHandler
	store  layer.FileStore
	o      Options
	slots  chan struct{} // one for each import at work
	queued chan struct{} // one for each that is accepted
	keeper *keeper
	watch  *watch

	readers chan struct{} // one for each that holds trees of published layers in memory
}

// maxReaders is how many requests about published content are answered at a time.
const maxReaders = 4

// New returns the handler of the service: Connect's LayerService (ImportLayer alone), PUT /v1/layers, and for the
// catalogue's owner StoreService, DELETE /v1/layers/{digest} and POST /v1/layers/{digest}/keep.
func New(store layer.FileStore, o Options) http.Handler {
	o = o.orDefault()
	s := &service{store: store, o: o, slots: make(chan struct{}, o.Imports), queued: make(chan struct{}, o.Imports+o.Queue), keeper: newKeeper(o.Grace), watch: newWatch(store, o.StoreTimeout),
		readers: make(chan struct{}, maxReaders)}
	mux := http.NewServeMux()
	path, rpc := dsecv1connect.NewLayerServiceHandler(s)
	mux.Handle(path, rpc)
	mux.Handle(dsecv1connect.NewStoreServiceHandler(stored{s}))
	mux.Handle(dsecv1connect.NewPackServiceHandler(packs{s}))
	mux.HandleFunc("PUT /v1/layers", s.upload)
	mux.HandleFunc("DELETE /v1/layers/{digest}", s.remove)
	mux.HandleFunc("POST /v1/layers/{digest}/keep", s.keep)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A client that does not read must not hold an import for ever.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(o.Timeout + time.Minute))
		mux.ServeHTTP(w, r)
	})
}

// job is one import.
type job struct {
	kind   dsecv1.LayerKind
	name   string
	prefix string
	source string
	over   []string // layers that it will lie on, bottom to top
	// overlay: the content is what an overlay has written.
	overlay bool
	// fill adds the content; dir is for its temporary files.
	fill func(ctx context.Context, b *tree.Builder, dir string, p oci.Progress) (layer.Config, error)
}

// kinds are the words of the URL.
var kinds = map[string]dsecv1.LayerKind{
	"": dsecv1.LayerKind_LAYER_KIND_BASE, "base": dsecv1.LayerKind_LAYER_KIND_BASE,
	"workspace": dsecv1.LayerKind_LAYER_KIND_WORKSPACE, "toolkit": dsecv1.LayerKind_LAYER_KIND_TOOLKIT,
}

// check refuses what could not be published, before any work is done.
func (j *job) check() error {
	if j.kind == dsecv1.LayerKind_LAYER_KIND_UNSPECIFIED {
		j.kind = dsecv1.LayerKind_LAYER_KIND_BASE
	}
	if _, ok := dsecv1.LayerKind_name[int32(j.kind)]; !ok {
		return fmt.Errorf("%w: kind %d; want base, workspace or toolkit", sandbox.ErrInvalid, j.kind)
	}
	return layer.CheckName(j.name)
}

// do runs a job when its turn has come. Progress and result go to send, from one goroutine at a time.
func (s *service) do(ctx context.Context, j *job, send func(*dsecv1.ImportLayerResponse) error) error {
	start := s.o.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, s.o.Timeout, fmt.Errorf("import %s: %w: it took longer than %v", j.name, sandbox.ErrDeadline, s.o.Timeout))
	defer cancel()
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	working, rep := startReporter(ctx, send)
	m, err := within(working, s.watch, func(ctx context.Context) (made, error) {
		l, was, err := s.make(ctx, j, rep.set)
		return made{l, was}, err
	})
	l, was := m.layer, m.was
	var gone *noStore
	if err != nil && working.Err() != nil && !errors.As(err, &gone) { // whatever broke because of it
		err = context.Cause(working)
	}
	if rerr := rep.stop(); err == nil {
		err = rerr
	}
	if err != nil {
		s.o.Log.WarnContext(ctx, "import", "name", j.name, "source", j.source, "took", s.o.Now().Sub(start), "error", err)
		return err
	}
	s.o.Log.InfoContext(ctx, "import", "name", j.name, "source", j.source, "digest", l.Digest, "bytes", l.DataBytes,
		"files", l.Files, "reused", was == whole, "repaired", was == damaged, "took", s.o.Now().Sub(start))
	return send(&dsecv1.ImportLayerResponse{Layer: l, Reused: was == whole, Repaired: was == damaged})
}

// enter waits for a turn.
func (s *service) enter(ctx context.Context) (leave func(), err error) {
	select {
	case s.queued <- struct{}{}:
	default:
		return nil, fmt.Errorf("import: %w: %d imports are waiting already; try again later", sandbox.ErrExhausted, s.o.Queue)
	}
	select {
	case s.slots <- struct{}{}:
		return func() { <-s.slots; <-s.queued }, nil
	case <-ctx.Done():
		<-s.queued
		return nil, context.Cause(ctx)
	}
}

// make builds the layer and publishes it.
func (s *service) make(ctx context.Context, j *job, p oci.Progress) (*dsecv1.Layer, found, error) {
	stage, err := s.store.Stage(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err := stage.Close(); err != nil {
			s.o.Log.WarnContext(ctx, "import left files in staging", "dir", stage.Dir(), "error", err)
		}
	}()
	made, tmp := filepath.Join(stage.Dir(), "layer"), filepath.Join(stage.Dir(), "tmp")
	if err := errors.Join(os.Mkdir(made, 0o700), os.Mkdir(tmp, 0o700)); err != nil {
		return nil, 0, err
	}
	opts := tree.Options{Prefix: j.prefix, Devices: tree.SkipDevices, Overlay: j.overlay, Limits: s.o.Limits, MinFree: s.o.MinFree}
	if len(j.over) > 0 {
		done, err := s.reading(ctx)
		if err != nil {
			return nil, 0, err
		}
		defer done()
		layers, err := s.openAll(ctx, j.over)
		if err != nil {
			return nil, 0, err
		}
		if opts.Below, err = show(ctx, layers); err != nil {
			return nil, 0, err
		}
	}
	b, err := tree.New(made, opts)
	if err != nil {
		return nil, 0, err
	}
	defer b.Close()
	config, err := j.fill(ctx, b, tmp, p)
	if err != nil {
		return nil, 0, err
	}
	if err := b.CheckMountPoints(); err != nil {
		return nil, 0, err
	}
	r, err := b.Finish(ctx, config)
	if err != nil {
		return nil, 0, err
	}
	if n := r.Stats.SkippedDevices; n > 0 {
		s.o.Log.InfoContext(ctx, "import left device nodes out", "name", j.name, "count", n)
	}
	size := r.Manifest.Meta.Size + r.Manifest.Data.Size
	p("publish", 0, size)
	was, err := s.put(ctx, r)
	if err != nil {
		return nil, 0, err
	}
	p("publish", size, size)
	return &dsecv1.Layer{
		Kind: j.kind, Name: j.name, Digest: string(r.Digest), MetaBytes: r.Manifest.Meta.Size, DataBytes: r.Manifest.Data.Size,
		Files: r.Manifest.Files, CreatedAt: timestamppb.New(s.o.Now()), Source: j.source,
		Config: &dsecv1.ImageConfig{Env: config.Env, User: config.User, Workdir: config.Workdir, Entrypoint: config.Entrypoint, Cmd: config.Cmd, Disk: diskOf(config)},
	}, was, nil
}

// made is what make returns.
type made struct {
	layer *dsecv1.Layer
	was   found
}

// found is how a layer was in the store before it was published.
type found int

const (
	absent found = iota
	whole
	damaged
)

// put publishes the files, or finds that they are there, as they should be; either way the layer is kept for a while.
func (s *service) put(ctx context.Context, r *tree.Result) (was found, err error) {
	s.keeper.publishing.RLock()
	defer s.keeper.publishing.RUnlock()
	switch err := s.store.Verify(ctx, r.Digest); {
	case err == nil:
		was = whole
	case errors.Is(err, layer.ErrDamaged):
		was = damaged
		s.o.Log.WarnContext(ctx, "layer is damaged in the store; it is replaced", "digest", r.Digest, "error", err)
	case !errors.Is(err, sandbox.ErrNotFound):
		return was, err
	}
	if was == whole {
		if g, ok := s.store.(interface{ Restore(layer.Digest) }); ok { // a deletion may be waiting
			g.Restore(r.Digest)
		}
		s.keeper.keep(r.Digest)
		return was, nil
	}
	if _, err := s.store.PutFiles(ctx, r.Manifest, r.MetaPath, r.DataPath); err != nil {
		return was, err
	}
	s.keeper.keep(r.Digest)
	return was, nil
}
