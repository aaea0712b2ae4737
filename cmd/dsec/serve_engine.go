package main

import (
	"context"
	"log/slog"

	"github.com/opendsec/dsec/cluster/engine"
)

func serveEngine(ctx context.Context, _ *serveFlags, d stateDir, log *slog.Logger) error {
	e, err := engine.Start(ctx, engine.Options{Dir: d.path("engine"), Socket: d.socket("engine"), Log: log})
	if err != nil {
		return err
	}
	log.Info("serves", "socket", d.socket("engine"))
	select {
	case err := <-e.Err():
		return err
	case <-ctx.Done():
		// What was acknowledged is on disk; closing would wait for watchers.
		return nil
	}
}
