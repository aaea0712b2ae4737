package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
)

// serveBlobd serves the importer of layers.
func serveBlobd(ctx context.Context, _ *serveFlags, d stateDir, log *slog.Logger) error {
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotImplemented)
		_ = json.NewEncoder(w).Encode(map[string]string{"code": "unimplemented", "message": "this build imports no layers"})
	})
	return serveUnix(ctx, d.socket("blobd"), h, log)
}
