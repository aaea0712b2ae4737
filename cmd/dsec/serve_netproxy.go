package main

import (
	"context"
	"log/slog"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network/netproxy"
	"github.com/opendsec/dsec/policy/network/proxy"
)

// serveNetproxy has the connections of sandboxes that are checked by name.
func serveNetproxy(ctx context.Context, _ *serveFlags, d stateDir, log *slog.Logger) error {
	if err := linux.RaiseFileLimit(proxy.UsualFiles); err != nil {
		log.Warn("open files stay as they are limited", "err", err)
	}
	ln, err := listenUnix(d.socket(netproxyRole))
	if err != nil {
		return err
	}
	return netproxy.NewServer(netproxy.ServerConfig{Log: log}).Serve(ctx, ln)
}
