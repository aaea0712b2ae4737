package lazy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/opendsec/dsec/internal/fuse"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/lazy/cache"
	"github.com/opendsec/dsec/sandbox"
)

const (
	manifestName = "manifest.json"
	metaName     = "meta.erofs"
	traceName    = "trace"
	openedName   = "opened"
	// saveEvery is how often traces are saved.
	saveEvery = 30 * time.Second
	// leastFault is how long a read takes that fails: who tries again and again is slowed down.
	leastFault = 100 * time.Millisecond
)

// Options of a Server. Zero fields get defaults.
type Options struct {
	Dir      string        // of the node's disk: metadata and cache
	Cache    int64         // bound of the cache, bytes; 0 = 10 GiB
	MinFree  int64         // bytes that the cache leaves free on the disk; 0 = 1 GiB
	Timeout  time.Duration // for how long a reader waits for the store; 0 = 30 s
	Requests int           // to the store at a time; 0 = 16
	Memory   int64         // for verified chunks, bytes; 0 = a 64th of the machine's, 16 to 128 MiB
	Faults   *Faults       // nil = not recorded
	Log      *slog.Logger  // nil = discarded
}

// Server gives layers of a store to this machine. It implements fuse.Files.
//
//	<dir>/layers/<hex>/   manifest, metadata, what was read, how often it is open
//	<dir>/chunks/         the cache
type Server struct {
	o      Options
	store  layer.Store
	src    *source
	layers string
	one    singleflight.Group

	mu      sync.Mutex
	known   map[uint64]*attached
	onDisk  map[uint64]layer.Digest // also those that were not used yet
	removed map[layer.Digest]bool   // to be deleted when the kernel lets go of them
}

var _ fuse.Files = (*Server)(nil)

// NewServer opens the directory.
func NewServer(store layer.Store, o Options) (*Server, error) {
	set := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	set(&o.Cache, 10<<30)
	set(&o.MinFree, 1<<30)
	set((*int64)(&o.Timeout), int64(30*time.Second))
	total, _ := linux.TotalMemory() // unknown is little
	set(&o.Memory, min(max(total/64, minHot), maxHot))
	if o.Requests == 0 {
		o.Requests = 16
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	c, err := cache.Open(filepath.Join(dir, "chunks"), cache.Options{Limit: o.Cache, MinFree: o.MinFree, Log: o.Log})
	if err != nil {
		return nil, err
	}
	s := &Server{o: o, store: store, src: newSource(store, c, o), layers: filepath.Join(dir, "layers"),
		known: map[uint64]*attached{}, onDisk: map[uint64]layer.Digest{}, removed: map[layer.Digest]bool{}}
	if err := os.MkdirAll(s.layers, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.layers)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		d, err := layer.ParseDigest("b3:" + e.Name())
		if err != nil {
			_ = os.RemoveAll(filepath.Join(s.layers, e.Name())) // half made
			continue
		}
		if id, err := NodeID(d); err == nil {
			s.onDisk[id] = d
		}
	}
	return s, nil
}

func (s *Server) dir(d layer.Digest) string { return filepath.Join(s.layers, d.Hex()) }

// Attach brings a layer's metadata to the node's disk, verified, and returns where it lies. Errors: sandbox.ErrInvalid,
// sandbox.ErrNotFound, sandbox.ErrUnavailable.
func (s *Server) Attach(ctx context.Context, d layer.Digest) (*layer.Local, error) {
	if _, err := layer.ParseDigest(string(d)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.o.Timeout, fmt.Errorf("layer %s: %w: the store did not answer for %v", d, sandbox.ErrUnavailable, s.o.Timeout))
	defer cancel()
	done := s.one.DoChan(string(d), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.o.Timeout)
		defer cancel()
		return s.attach(ctx, d)
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return nil, r.Err
		}
		l := r.Val.(*attached)
		return &layer.Local{Digest: d, Manifest: *l.manifest, MetaPath: filepath.Join(s.dir(d), metaName), DataPath: d.Hex()}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *Server) attach(ctx context.Context, d layer.Digest) (*attached, error) {
	id, err := NodeID(d)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	l, other, removed := s.known[id], s.onDisk[id], s.removed[d]
	s.mu.Unlock()
	if other != "" && other != d {
		return nil, fmt.Errorf("layer %s: %w: its digest begins like that of %s: one of them cannot be used here", d, sandbox.ErrConflict, other)
	}
	if removed {
		if _, err := s.store.Get(ctx, d); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("layer %s: %w: it was deleted", d, sandbox.ErrNotFound)
	}
	if l != nil {
		if st, err := os.Stat(filepath.Join(s.dir(d), metaName)); err == nil && st.Size() == l.manifest.Meta.Size {
			return l, nil
		}
	}
	if l, err = s.load(ctx, d); err == nil {
		err = s.verifyMeta(ctx, l)
	}
	if err == nil {
		return s.know(l), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		s.o.Log.Error("metadata on the node's disk is damaged: it is fetched again", "layer", d, "err", err)
	}
	m, err := s.bring(ctx, d)
	if err != nil {
		return nil, err
	}
	if l, err = s.attached(d, m); err != nil {
		return nil, err
	}
	return s.know(l), nil
}

// know enters a layer, unless another was faster.
func (s *Server) know(l *attached) *attached {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.known[l.id]; k != nil {
		return k
	}
	s.known[l.id], s.onDisk[l.id] = l, l.digest
	return l
}

// load reads a layer's manifest from the node's disk.
func (s *Server) load(_ context.Context, d layer.Digest) (*attached, error) {
	b, err := os.ReadFile(filepath.Join(s.dir(d), manifestName))
	if err != nil {
		return nil, err
	}
	m, err := layer.DecodeManifest(b, d)
	if err != nil {
		return nil, err
	}
	return s.attached(d, m)
}

// attached makes a layer of its manifest and of what the node's disk has of its use.
func (s *Server) attached(d layer.Digest, m *layer.Manifest) (*attached, error) {
	l, err := newAttached(d, m)
	if err != nil {
		return nil, err
	}
	l.trace.load(filepath.Join(s.dir(d), traceName))
	if b, err := os.ReadFile(filepath.Join(s.dir(d), openedName)); err == nil {
		n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		l.opened.Store(n)
	}
	return l, nil
}

func (s *Server) verifyMeta(ctx context.Context, l *attached) error {
	f, err := os.Open(filepath.Join(s.dir(l.digest), metaName))
	if err != nil {
		return err
	}
	defer f.Close()
	return l.manifest.Meta.Verify(ctx, f)
}

// find returns a layer by its id, from the node's disk where it was not used since the start.
func (s *Server) find(id uint64) *attached {
	s.mu.Lock()
	l, d := s.known[id], s.onDisk[id]
	s.mu.Unlock()
	if l != nil || d == "" {
		return l
	}
	l, err := s.load(context.Background(), d)
	if err != nil {
		s.o.Log.Error("manifest on the node's disk cannot be used", "layer", d, "err", err)
		return nil
	}
	return s.know(l)
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	st := s.src.stats()
	s.mu.Lock()
	st.Layers = int64(len(s.onDisk))
	s.mu.Unlock()
	return st
}

// Layers lists what is on the node's disk.
func (s *Server) Layers() []layer.Digest {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]layer.Digest, 0, len(s.onDisk))
	for _, d := range s.onDisk {
		out = append(out, d)
	}
	return out
}

// Trace says what was read of a layer. Error: sandbox.ErrNotFound when it never came to this node.
func (s *Server) Trace(d layer.Digest) (*Trace, error) {
	id, err := NodeID(d)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	l := s.find(id)
	if l == nil || l.digest != d {
		return nil, fmt.Errorf("layer %s: %w on this node: it was not used here", d, sandbox.ErrNotFound)
	}
	t := l.traced()
	return &t, nil
}

// saving saves traces until ctx is done.
func (s *Server) saving(ctx context.Context) {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.save()
		}
	}
}

func (s *Server) save() {
	s.mu.Lock()
	all := make([]*attached, 0, len(s.known))
	for _, l := range s.known {
		all = append(all, l)
	}
	s.mu.Unlock()
	for _, l := range all {
		if err := l.trace.save(filepath.Join(s.dir(l.digest), traceName)); err != nil {
			s.o.Log.Debug("trace is not saved", "layer", l.digest, "err", err)
		}
	}
}

// Close ends what is under way.
func (s *Server) Close() {
	s.src.close()
	s.save()
}
