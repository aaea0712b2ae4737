package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"

	"github.com/opendsec/dsec/cluster/apiserver"
	"github.com/opendsec/dsec/cluster/engine"
	"github.com/opendsec/dsec/cluster/iam"
	"github.com/opendsec/dsec/cluster/netrules"
	"golang.org/x/sync/errgroup"
)

const (
	defaultListen      = "127.0.0.1:7777"
	defaultPortsListen = "127.0.0.1:7778"
)

func serveAPIServer(ctx context.Context, f *serveFlags, d stateDir, log *slog.Logger) error {
	// It passes on what others do: as many processors as they have would mostly wake each other.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/2))
	}
	endpoints, edges, importer := f.engine, f.edges, f.importer
	if len(endpoints) == 0 {
		endpoints = []string{d.endpoint("engine")}
	}
	if len(edges) == 0 {
		edges = []string{d.endpoint("edge")}
	}
	if importer == "" {
		importer = d.endpoint("blobd")
	}
	api, ports, e2bDoor, err := f.listeners()
	if err != nil {
		return err
	}
	defer api.Close()
	defer ports.Close()
	if e2bDoor != nil {
		defer e2bDoor.Close()
	}
	etcd, err := engine.Dial(endpoints...)
	if err != nil {
		return err
	}
	defer etcd.Close()
	catalogue := newCatalogue(etcd, log)
	keys := iam.New(etcd, iam.Options{Log: log})
	s, err := apiserver.New(apiserver.Options{
		Edges: edges, Importer: importer, Keys: keys, Catalogue: catalogue,
		Network:  netrules.New(etcd, log),
		PortsURL: "http://" + ports.Addr().String(), Scratch: buildsDir(d), Version: buildVersion(), Log: log,
	})
	if err != nil {
		return err
	}
	log.Info("serves", "api", api.Addr().String(), "ports", ports.Addr().String())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { s.Run(ctx); return nil })
	g.Go(func() error { catalogue.Run(ctx); return nil })
	g.Go(func() error { return apiserver.Serve(ctx, api, s.Handler(), log) })
	g.Go(func() error { return apiserver.Serve(ctx, ports, s.Ports(), log) })
	if e2bDoor != nil {
		g.Go(func() error {
			return apiserver.Serve(ctx, e2bDoor, newE2BDoor(f, d, s, keys, e2bDoor.Addr(), log), log)
		})
	}
	return g.Wait()
}

// listeners are inherited from `dsec up`, so that clients wait in the kernel's queue while this process is
// replaced, or made here.
// The last is nil where it is off.
func (f *serveFlags) listeners() (api, ports, e2bDoor net.Listener, err error) {
	if f.listenFDs {
		if api, err = inherited(3); err == nil {
			ports, err = inherited(4)
		}
		if err == nil && f.e2bListen != off {
			e2bDoor, err = inherited(5)
		}
		return api, ports, e2bDoor, err
	}
	if api, err = net.Listen("tcp", f.listen); err != nil {
		return nil, nil, nil, fmt.Errorf("listen for the API: %w", err)
	}
	if ports, err = net.Listen("tcp", f.portsListen); err != nil {
		api.Close()
		return nil, nil, nil, fmt.Errorf("listen for ports: %w", err)
	}
	if f.e2bListen != off {
		if e2bDoor, err = net.Listen("tcp", f.e2bListen); err != nil {
			api.Close()
			ports.Close()
			return nil, nil, nil, fmt.Errorf("listen for E2B clients: %w", err)
		}
	}
	return api, ports, e2bDoor, nil
}

func inherited(fd uintptr) (net.Listener, error) {
	file := os.NewFile(fd, "listener")
	defer file.Close()
	ln, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("inherit listening socket %d: %w", fd, err)
	}
	return ln, nil
}
