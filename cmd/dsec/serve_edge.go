package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/opendsec/dsec/sandbox"
)

// serveEdge serves the node's sandboxes.
func serveEdge(ctx context.Context, f *serveFlags, d stateDir, log *slog.Logger) error {
	return fmt.Errorf("edge: %w: this build has no driver %q", sandbox.ErrUnsupported, f.backend)
}
