// Package engine is the durable engine of a one-machine DSec: an etcd server inside the process, reached over
// a Unix socket in a directory that only root can enter. A cluster uses its own etcd instead; clients see no
// difference but the endpoint.
//
// Only what must be consistent and survive lies here (keys, the catalogue); nothing on the way of a creation
// writes to it.
package engine

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/opendsec/dsec/sandbox"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Options of an embedded engine.
type Options struct {
	// Dir keeps the data; it is made with mode 0700.
	Dir string
	// Socket is the path of the Unix socket for clients. A peer socket is made beside it and never used by
	// anybody: there is one member.
	Socket string
	// QuotaBytes bounds the database file; 0 = 256 MiB.
	QuotaBytes int64
	Log        *slog.Logger
}

// maxSocketPath is what fits into a sockaddr_un, without its final zero.
const maxSocketPath = 107

// Engine is a running embedded etcd.
type Engine struct {
	etcd *embed.Etcd
}

// Start starts the engine and returns when it serves, or when ctx is done.
func Start(ctx context.Context, o Options) (*Engine, error) {
	peer := o.Socket + "-peer"
	if len(peer) > maxSocketPath {
		return nil, fmt.Errorf("engine socket %s: %w: the path is longer than %d bytes; use a shorter state directory",
			peer, sandbox.ErrInvalid, maxSocketPath)
	}
	for _, d := range []string{o.Dir, filepath.Dir(o.Socket)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("make engine directory: %w", err)
		}
	}
	cfg := config(o, peer)
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure engine: %w", err)
	}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("start engine in %s: %w", o.Dir, err)
	}
	select {
	case <-e.Server.ReadyNotify():
		return &Engine{etcd: e}, nil
	case err := <-e.Err():
		e.Close()
		return nil, fmt.Errorf("start engine in %s: %w", o.Dir, err)
	case <-ctx.Done():
		e.Close()
		return nil, fmt.Errorf("start engine in %s: %w", o.Dir, ctx.Err())
	}
}

func config(o Options, peer string) *embed.Config {
	unix := func(path string) []url.URL { return []url.URL{{Scheme: "unix", Path: path}} }
	cfg := embed.NewConfig()
	cfg.Name = "dsec"
	cfg.Dir = o.Dir
	cfg.ListenClientUrls, cfg.ListenPeerUrls = unix(o.Socket), unix(peer)
	// The advertised addresses are only names in the member list: nobody dials them, and they stay the same
	// when the state directory moves.
	cfg.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:2"}}
	cfg.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:1"}}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	// One member elects itself: short ticks make a restart take a fraction of a second.
	cfg.TickMs, cfg.ElectionMs = 20, 200
	cfg.QuotaBackendBytes = o.QuotaBytes
	if cfg.QuotaBackendBytes == 0 {
		cfg.QuotaBackendBytes = 256 << 20
	}
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = "revision", "1000"
	cfg.MaxWalFiles, cfg.MaxSnapFiles = 2, 2
	cfg.SnapshotCount = 5000
	cfg.EnableGRPCGateway = false
	cfg.WarningApplyDuration, cfg.WarningUnaryRequestDuration = time.Second, time.Second
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(&slogCore{log: o.Log}))
	return cfg
}

// Err delivers what ends a running engine by itself.
func (e *Engine) Err() <-chan error { return e.etcd.Err() }

// Close stops the engine and waits for it. It waits up to five seconds for clients that watch; a process that
// ends anyway need not call it: what was acknowledged is on disk.
func (e *Engine) Close() { e.etcd.Close() }
