package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"connectrpc.com/connect"
	clientv3 "go.etcd.io/etcd/client/v3"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/strictjson"
	"github.com/opendsec/dsec/backend/container/cgroup"
	"github.com/opendsec/dsec/backend/fncall"
	"github.com/opendsec/dsec/cluster/engine"
	edgecalls "github.com/opendsec/dsec/edge/fncall"
	"github.com/opendsec/dsec/environment"
	"github.com/opendsec/dsec/guest/cell"
	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// defaultCallBase is the base of runtimes that nobody said anything about.
const defaultCallBase = "fncall"

// maxCallRequest bounds one request of function calls, bytes.
const maxCallRequest = 16 << 20

// callConfig reads --opt fncall and fncall-parallel.
func callConfig(opts map[string]string) (cfg fncall.Config, err error) {
	base := opts["fncall"]
	if base == "" {
		base = defaultCallBase
	}
	if cfg.Bases, err = fncall.ParseBases(base); err != nil {
		return cfg, fmt.Errorf("--opt fncall: %w", err)
	}
	if v := opts["fncall-parallel"]; v != "" {
		if cfg.Parallel, err = strconv.Atoi(v); err != nil || cfg.Parallel < 1 {
			return cfg, fmt.Errorf("--opt fncall-parallel=%s: %w: want a number above 0", v, sandbox.ErrInvalid)
		}
	}
	return cfg, nil
}

// calls are the node's function calls.
type calls struct {
	service *fncall.Service
	etcd    *clientv3.Client
	dir     string

	mu    sync.Mutex
	bases map[string]string // what SetRuntime said
}

// openCalls opens them. Runtimes' bases are looked up in the engine when they are first used.
func openCalls(f *serveFlags, d stateDir, opts map[string]string, id sandbox.EdgeID, log *slog.Logger) (*calls, error) {
	cfg, err := callConfig(opts)
	if err != nil {
		return nil, err
	}
	c := &calls{dir: d.path("edge", "fncall"), bases: map[string]string{}}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(c.file())
	if err == nil {
		err = json.Unmarshal(b, &c.bases)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("what runtimes were set to is unreadable; --opt fncall holds", "err", err)
	}
	fallback := cfg.Bases
	cfg.Bases = map[string]string{}
	for n, base := range fallback {
		cfg.Bases[n] = base
	}
	for n, base := range c.bases {
		cfg.Bases[n] = base
	}
	if cfg.InitBinary = opts["init"]; cfg.InitBinary == "" {
		if cfg.InitBinary, err = findInit(); err != nil {
			return nil, err
		}
	}
	store, err := readStore(opts, d)
	if err != nil {
		return nil, err
	}
	layers, err := store.node(d, hold.NewClient(d.socket(holdRole)), log)
	if err != nil {
		return nil, err
	}
	endpoints := f.engine
	if len(endpoints) == 0 {
		endpoints = []string{d.endpoint("engine")}
	}
	if c.etcd, err = engine.Dial(endpoints...); err != nil {
		return nil, err
	}
	cfg.StateDir, cfg.Log, cfg.Name = c.dir, log, cgroup.Name("dsec-calls", id, string(d))
	cfg.Resolve = resolveCalls(environment.NewEtcd(c.etcd, cataloguePrefix), layers)
	if c.service, err = fncall.New(cfg); err != nil {
		c.etcd.Close()
		return nil, err
	}
	return c, nil
}

// resolveCalls finds a base in the catalogue and its layers on this node.
func resolveCalls(kv environment.KV, node layer.Node) fncall.Resolve {
	catalogue := environment.New(kv, nil)
	return func(ctx context.Context, base string) (*fncall.Environment, error) {
		found, err := catalogue.Resolve(ctx, &dsecv1.Environment{Base: base})
		if errors.Is(err, sandbox.ErrNotFound) {
			return nil, fmt.Errorf("%w; import one with the runtime's tools (dsec image import ... --name %s), or name another: dsec runtime set NAME --base IMAGE", err, base)
		}
		if err != nil {
			return nil, err
		}
		env := &fncall.Environment{Env: found.GetConfig().GetEnv()}
		for _, l := range found.GetLayers() {
			at, err := node.Local(ctx, layer.Digest(l.GetDigest()))
			if err != nil {
				return nil, fmt.Errorf("layer %s: %w", l.GetDigest(), err)
			}
			data := at.DataPath
			if at.Manifest.Data.Size == 0 {
				data = ""
			}
			// What a descriptor of this process names, the worker reaches through it.
			self := fmt.Sprintf("/proc/%d/", os.Getpid())
			env.Layers = append(env.Layers, cell.Layer{Meta: strings.Replace(at.MetaPath, "/proc/self/", self, 1), Data: strings.Replace(data, "/proc/self/", self, 1)})
			env.Digests = append(env.Digests, l.GetDigest())
		}
		return env, nil
	}
}

func (c *calls) file() string { return c.dir + "/runtimes.json" }

// setBase keeps and carries out SetRuntime.
func (c *calls) setBase(name, base string) error {
	if base != "" {
		if err := layer.CheckName(environmentName(base)); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.service.SetBase(name, base); err != nil {
		return err
	}
	c.bases[name] = base
	b, err := json.Marshal(c.bases)
	if err == nil {
		if err = os.WriteFile(c.file()+".new", b, 0o600); err == nil {
			err = os.Rename(c.file()+".new", c.file())
		}
	}
	if err != nil {
		return fmt.Errorf("keep what runtime %s is set to: %w", name, err)
	}
	return nil
}

// environmentName is a base's name without its version.
func environmentName(base string) string {
	for i := range base {
		if base[i] == '@' {
			return base[:i]
		}
	}
	return base
}

// handler serves function calls, and everything else by next.
func (c *calls) handler(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	path, h := edgecalls.New(c.service, c.setBase).Handler(connect.WithReadMaxBytes(maxCallRequest), strictjson.Option())
	mux.Handle(path, h)
	mux.Handle("/", next)
	return mux
}

func (c *calls) close() error { return errors.Join(c.service.Close(), c.etcd.Close()) }
