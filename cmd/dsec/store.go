package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/lazy"
	"github.com/opendsec/dsec/layer/lazy/cache"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/layer/store/s3"
	"github.com/opendsec/dsec/sandbox"
)

// storeOptions are what --opt may name for the store of layers.
var storeOptions = []string{"store", "lazy", "cache", "store-timeout", "registry-timeout"}

func init() { edgeOptions = append(edgeOptions, storeOptions...) }

// storeConfig says where a node's layers are, and how they are read.
type storeConfig struct {
	dir     string     // a folder: the node's own, a local one, a mount of a shared file system
	s3      *s3.Config // nil = dir
	lazy    bool
	cache   int64
	timeout time.Duration
	// registry is for how long a registry that is imported from may send nothing; 0 = the default.
	registry time.Duration
}

// minStoreTimeout is the least that --opt store-timeout and registry-timeout may say.
const minStoreTimeout = 100 * time.Millisecond

// readStore reads the options. It opens nothing.
func readStore(opts map[string]string, d stateDir) (c storeConfig, err error) {
	c = storeConfig{dir: d.path("layers")}
	if v := opts["store"]; strings.HasPrefix(v, "s3://") {
		if c.s3, err = s3URL(v); err != nil {
			return c, fmt.Errorf("--opt store: %w", err)
		}
	} else if v != "" {
		if !filepath.IsAbs(v) {
			return c, fmt.Errorf("--opt store=%s: %w: want an absolute path or s3://BUCKET", v, sandbox.ErrInvalid)
		}
		c.dir = filepath.Clean(v)
	}
	switch v := opts["lazy"]; v {
	case "", "auto":
		c.lazy = c.s3 != nil || !linux.IsLocalDisk(c.dir)
	case "on":
		c.lazy = true
	case "off":
		if c.s3 != nil {
			return c, fmt.Errorf("--opt lazy=off: %w: layers of an S3 store are read on demand: leave it out", sandbox.ErrInvalid)
		}
	default:
		return c, fmt.Errorf("--opt lazy=%s: %w: want on, off or auto", v, sandbox.ErrInvalid)
	}
	if v := opts["cache"]; v != "" {
		if c.cache, err = parseSize(v); err != nil || c.cache < cache.MinLimit {
			return c, fmt.Errorf("--opt cache=%s: %w: want a size of at least %dm", v, sandbox.ErrInvalid, cache.MinLimit>>20)
		}
	}
	for name, to := range map[string]*time.Duration{"store-timeout": &c.timeout, "registry-timeout": &c.registry} {
		if v := opts[name]; v != "" {
			if *to, err = time.ParseDuration(v); err != nil || *to < minStoreTimeout {
				return c, fmt.Errorf("--opt %s=%s: %w: want a time of at least %v, like 30s", name, v, sandbox.ErrInvalid, minStoreTimeout)
			}
		}
	}
	return c, nil
}

// s3URL reads s3://BUCKET/PREFIX?endpoint=URL&region=NAME&credentials=FILE&style=path|host.
func s3URL(s string) (*s3.Config, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("%w: it is no URL", sandbox.ErrInvalid)
	}
	if u.User != nil {
		return nil, fmt.Errorf("%w: no credentials here, where `ps` shows them: use AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or credentials=FILE", sandbox.ErrInvalid)
	}
	c := &s3.Config{Bucket: u.Host, Prefix: strings.Trim(u.Path, "/")}
	if c.Prefix != "" {
		c.Prefix = path.Clean(c.Prefix) + "/"
	}
	for k, v := range u.Query() {
		switch k {
		case "endpoint":
			c.Endpoint = v[0]
		case "region":
			c.Region = v[0]
		case "credentials":
			if !filepath.IsAbs(v[0]) {
				return nil, fmt.Errorf("%w: credentials=%s: want an absolute path", sandbox.ErrInvalid, v[0])
			}
			c.CredentialsFile = v[0]
		case "style":
			c.HostStyle = v[0] == "host"
		default:
			return nil, fmt.Errorf("%w: %q: want endpoint, region, credentials or style", sandbox.ErrInvalid, k)
		}
	}
	return c, c.Check()
}

// open opens the store for publishing and reading.
func (c storeConfig) open(d stateDir, log *slog.Logger) (layer.FileStore, error) {
	if c.s3 == nil {
		return c.openFolder(log)
	}
	bucket := *c.s3
	bucket.Timeout = c.timeout
	return s3.Open(bucket, d.path("staging"), log)
}

// openFolder opens a store in a folder; one of a mount that hangs is given up.
func (c storeConfig) openFolder(log *slog.Logger) (*posix.Store, error) {
	type opened struct {
		store *posix.Store
		err   error
	}
	out, within := make(chan opened, 1), cmp.Or(c.timeout, 30*time.Second)
	go func() {
		s, err := posix.Open(c.dir, log)
		out <- opened{s, err}
	}()
	select {
	case o := <-out:
		return o.store, o.err
	case <-time.After(within):
		return nil, fmt.Errorf("open layer store: %w: %s did not answer within %v", sandbox.ErrUnavailable, c.dir, within)
	}
}

// node gives the layers to a backend of this machine.
func (c storeConfig) node(d stateDir, h *hold.Client, log *slog.Logger) (layer.Node, error) {
	if c.lazy {
		return lazy.NewNode(d.socket("blobd"), h), nil
	}
	store, err := c.openFolder(log)
	if err != nil {
		return nil, err
	}
	return posix.NewNode(store), nil
}

// faults tells the edge of the store's faults; nil = there can be none that it would not see itself.
func (c storeConfig) faults(d stateDir) edge.StoreFaults {
	if !c.lazy {
		return nil
	}
	r := lazy.NewFaultReader(faultFile(d))
	return func(layers []string, from, to time.Time) bool {
		ids := make(map[uint64]bool, len(layers))
		for _, l := range layers {
			if id, err := lazy.NodeID(layer.Digest(l)); err == nil {
				ids[id] = true
			}
		}
		return r.Between(ids, from, to)
	}
}

// newFaults tells the edge of faults as they come; nil as of faults.
func (c storeConfig) newFaults(d stateDir) func() []edge.StoreFault {
	if !c.lazy {
		return nil
	}
	r := lazy.NewFaultReader(faultFile(d))
	return func() []edge.StoreFault {
		news := r.News()
		out := make([]edge.StoreFault, len(news))
		for i, f := range news {
			out[i] = edge.StoreFault{At: f.When, Layer: fmt.Sprintf("%016x", f.Layer), What: f.What, Count: f.Count}
		}
		return out
	}
}

// faultFile is where store faults are written down.
func faultFile(d stateDir) string { return d.path("run", "store-faults") }

// serveLazy serves layers on demand until ctx is done, beside whatever next answers.
func (c storeConfig) serveLazy(ctx context.Context, store layer.FileStore, d stateDir, log *slog.Logger,
	serve func(ctx context.Context, store layer.FileStore, wrap func(http.Handler) http.Handler) error) error {
	s, err := lazy.NewServer(store, lazy.Options{Dir: d.path("lazy"), Cache: c.cache, Timeout: c.timeout,
		Faults: lazy.NewFaults(faultFile(d)), Log: log})
	if err != nil {
		return err
	}
	defer s.Close()
	h := hold.NewClient(d.socket(holdRole))
	defer h.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(ctx, h); err != nil {
			cancel(err)
		}
	}()
	err = serve(ctx, s.Guard(store), func(next http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/v1/lazy/", s.Handler())
		mux.Handle("/", next)
		return mux
	})
	cause := context.Cause(ctx)
	cancel(nil)
	<-done
	if err == nil && cause != nil && cause != context.Canceled {
		err = cause
	}
	return err
}
