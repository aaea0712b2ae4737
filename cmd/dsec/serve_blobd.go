package main

import (
	"context"
	"log/slog"

	"github.com/opendsec/dsec/layer/importer"
	"github.com/opendsec/dsec/layer/store/posix"
)

// serveBlobd serves the importer of layers.
func serveBlobd(ctx context.Context, _ *serveFlags, d stateDir, log *slog.Logger) error {
	store, err := posix.Open(d.path("layers"), log)
	if err != nil {
		return err
	}
	log.Info("serves", "socket", d.socket("blobd"))
	return serveUnix(ctx, d.socket("blobd"), importer.New(store, importer.Options{Log: log}), log)
}
