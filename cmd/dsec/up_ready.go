package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/cluster/engine"
	"github.com/opendsec/dsec/cluster/iam"
	"github.com/opendsec/dsec/sandbox"
)

// firstKey returns the key in client.json while it is good, else a new one. It waits for the engine.
func firstKey(ctx context.Context, d stateDir) (string, error) {
	etcd, err := engine.Dial(d.endpoint("engine"))
	if err != nil {
		return "", err
	}
	defer etcd.Close()
	store := iam.New(etcd, iam.Options{Log: slog.New(slog.DiscardHandler)})
	old, err := client.ReadConfig(d.path("client.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for {
		key, err := keyOnce(ctx, store, old.Key)
		if err == nil || ctx.Err() != nil {
			return key, err
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func keyOnce(ctx context.Context, store *iam.Store, old string) (string, error) {
	call, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := store.Verify(call, old)
	if err == nil {
		return old, nil
	}
	if !errors.Is(err, sandbox.ErrUnauthenticated) {
		return "", err
	}
	_, key, err := store.Create(call, "admin", iam.FormatDSec)
	return key, err
}

// waitReady asks /readyz until it says yes.
func waitReady(ctx context.Context, url string) error {
	why := errors.New("no answer")
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			b, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			why = errors.New(strings.TrimSpace(string(b)))
		} else if ctx.Err() == nil {
			why = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), why)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
