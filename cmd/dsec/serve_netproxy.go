package main

import (
	"context"
	"log/slog"

	"github.com/opendsec/dsec/policy/network/netproxy"
)

// serveNetproxy has the connections of sandboxes that are checked by name.
func serveNetproxy(ctx context.Context, _ *serveFlags, d stateDir, log *slog.Logger) error {
	ln, err := listenUnix(d.socket(netproxyRole))
	if err != nil {
		return err
	}
	return netproxy.NewServer(netproxy.ServerConfig{Log: log}).Serve(ctx, ln)
}
