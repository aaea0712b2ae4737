package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/backend/saved"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/internal/linux/feature"
	"github.com/opendsec/dsec/sandbox"
)

// edgeClose bounds the end of an edge; its sandboxes go on.
const edgeClose = 5 * time.Second

// driverConfig is what a driver gets to know.
type driverConfig struct {
	edge  sandbox.EdgeID
	state stateDir
	opts  map[string]string // of --opt
	log   *slog.Logger
	net   nodeNetwork // the driver closes it
	saved *saved.Space
}

// driver makes a backend of this node.
type driver func(ctx context.Context, c driverConfig) (sandbox.Backend, error)

// drivers that this binary has; files of theirs add them.
var drivers = map[sandbox.BackendName]driver{}

// observed drivers tell how long their stages take.
type observed interface {
	SetObserver(func(stage string, d time.Duration))
}

// warmed drivers prepare shells ahead of the first creation, once what an earlier edge left is swept.
type warmed interface{ Start() }

// serveEdge serves the node's sandboxes.
func serveEdge(ctx context.Context, f *serveFlags, d stateDir, log *slog.Logger) error {
	opts, err := edgeOpts(f.opts, f.backend)
	if err != nil {
		return err
	}
	name := sandbox.BackendName(f.backend)
	start := drivers[name]
	if start == nil {
		return fmt.Errorf("driver %q: %w: this binary has %v", name, sandbox.ErrUnsupported, slices.Sorted(maps.Keys(drivers)))
	}
	if err := feature.Require(opts["require"]); err != nil {
		return fmt.Errorf("the edge does not serve: %w", err)
	}
	id, err := edgeID(d)
	if err != nil {
		return err
	}
	sink := &networkSink{}
	net, err := openNetwork(opts, name, d, log, sink.tell)
	if err != nil {
		return err
	}
	backend, err := start(ctx, driverConfig{edge: id, state: d, opts: opts, log: log, net: net})
	if err != nil {
		return fmt.Errorf("start driver %s: %w", name, err)
	}
	cfg := edge.Config{ID: id, StateDir: d.path("edge"), Version: buildVersion(), DefaultBackend: name, Packer: packer(d)}
	cfg.NetworkAbsent = net.absent
	if net.Network != nil {
		c := net.Compiler()
		cfg.Network = &c
		cfg.NetworkBy, cfg.NetworkLacks = net.Kind(), net.Lacks()
	}
	store, err := readStore(opts, d)
	if err != nil {
		return err
	}
	cfg.StoreFault = store.faults(d)
	cfg.NewStoreFaults = store.newFaults(d)
	if cfg.PauseKeepsMemory, err = pauseKeepsMemory(opts); err != nil {
		return err
	}
	if cfg.MinFreeMemory, err = minFree(opts); err != nil {
		return err
	}
	// No sandbox may ask for more disk than there is for all of them.
	if p, ok := backend.(edge.Pooled); ok {
		if cfg.MaxLimits.DiskBytes, _, err = p.Pool(ctx); err != nil {
			return fmt.Errorf("size of the writable-layer pool: %w", err)
		}
	}
	backends := map[sandbox.BackendName]sandbox.Backend{name: backend}
	if name == sandbox.BackendContainer {
		space, err := openSaved(opts, d) // once the pool has its room
		if err != nil {
			return err
		}
		cfg.SavedSpace = space.Usage
		m, err := openMicroVM(ctx, driverConfig{edge: id, state: d, opts: opts, log: log, net: net, saved: space})
		if err != nil {
			return err
		}
		if m != nil {
			backends[m.Name()] = m
		}
		v, err := openFullVM(ctx, driverConfig{edge: id, state: d, opts: opts, log: log, net: net, saved: space})
		if err != nil {
			return err
		}
		if v != nil {
			backends[v.Name()] = v
		}
	}
	e, err := edge.New(cfg, backends, log)
	if err != nil {
		return err
	}
	sink.edge.Store(e)
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), edgeClose)
		defer cancel()
		err := e.Close(last)
		for _, b := range backends {
			err = errors.Join(err, b.Close(last))
		}
		if err != nil {
			log.Warn("the edge does not end cleanly", "err", err)
		}
	}()
	for _, b := range backends {
		if o, ok := b.(observed); ok {
			o.SetObserver(e.Observe)
		}
	}
	if err := e.Recover(ctx); err != nil {
		return fmt.Errorf("take over sandboxes: %w", err)
	}
	if w, ok := backend.(warmed); ok {
		w.Start()
	}
	handler := e.Handler()
	if name == sandbox.BackendContainer {
		calls, err := openCalls(f, d, opts, id, log)
		if err != nil {
			return err
		}
		defer func() {
			if err := calls.close(); err != nil {
				log.Warn("function calls do not end cleanly", "err", err)
			}
		}()
		handler = calls.handler(handler)
	}
	log.Info("serves", "edge", id, "socket", d.socket("edge"))
	return serveUnix(ctx, d.socket("edge"), handler, log)
}

// packer is the connection to blobd for packs; nothing is opened yet.
func packer(d stateDir) dsecv1connect.PackServiceClient {
	var dialer net.Dialer
	hc := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", d.socket("blobd"))
	}}}
	return dsecv1connect.NewPackServiceClient(hc, "http://local")
}

// edgeID reads the node's id, or draws it once and for all: sandbox ids encode it.
func edgeID(d stateDir) (sandbox.EdgeID, error) {
	path := d.path("edge", "id")
	b, err := os.ReadFile(path)
	if err == nil {
		id := sandbox.EdgeID(strings.TrimSpace(string(b)))
		if len(id) != 4 {
			return "", fmt.Errorf("edge id in %s: %w: %q", path, sandbox.ErrInvalid, id)
		}
		return id, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.MkdirAll(d.path("edge"), 0o700); err != nil {
		return "", err
	}
	id := sandbox.NewEdgeID()
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(string(id) + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	return id, err
}
