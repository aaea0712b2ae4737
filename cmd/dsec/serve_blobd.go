package main

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/importer"
	"github.com/opendsec/dsec/layer/oci"
)

// serveBlobd serves the importer of layers, and layers on demand where they are read so.
func serveBlobd(ctx context.Context, f *serveFlags, d stateDir, log *slog.Logger) error {
	opts, err := edgeOpts(f.opts, f.backend)
	if err != nil {
		return err
	}
	c, err := readStore(opts, d)
	if err != nil {
		return err
	}
	store, err := c.open(d, log)
	if err != nil {
		return err
	}
	serve := func(ctx context.Context, store layer.FileStore, wrap func(http.Handler) http.Handler) error {
		log.Info("serves", "socket", d.socket("blobd"), "lazy", c.lazy)
		return serveUnix(ctx, d.socket("blobd"), wrap(importer.New(store, importer.Options{Log: log, StoreTimeout: c.timeout, Registry: oci.RegistryOptions{Keep: d.path("downloads"), Patience: c.registry}})), log)
	}
	if c.lazy {
		return c.serveLazy(ctx, store, d, log, serve)
	}
	return serve(ctx, store, func(h http.Handler) http.Handler { return h })
}
