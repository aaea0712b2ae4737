package testkit

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/layer/tree"
)

// Cache is where what is slow to make is kept.
func Cache() string { return cmp.Or(os.Getenv("DSEC_CACHE"), "/var/cache/dsec") }

// BaseLayer returns a store that holds the Debian base, and its digest; it is imported once.
func BaseLayer(ctx context.Context) (*posix.Store, layer.Digest, error) {
	tar, err := DebianBase(ctx)
	if err != nil {
		return nil, "", err
	}
	return TarLayer(ctx, tar)
}

// TarLayer returns a store that holds a layer of a tar, and its digest; it is imported once.
func TarLayer(ctx context.Context, tar string) (*posix.Store, layer.Digest, error) {
	dir := filepath.Join(Cache(), "test-layers")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, "", err
	}
	defer lock.Close() // unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, "", err
	}
	store, err := posix.Open(dir, nil)
	if err != nil {
		return nil, "", err
	}
	note := filepath.Join(dir, filepath.Base(tar)+".digest")
	if b, err := os.ReadFile(note); err == nil {
		d := layer.Digest(strings.TrimSpace(string(b)))
		if _, err := store.Get(ctx, d); err == nil {
			return store, d, nil
		}
	}
	f, err := os.Open(tar)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	d, err := Import(ctx, store, tree.Options{Devices: tree.SkipDevices}, func(b *tree.Builder) error { return b.AddTar(ctx, f, tree.Plain) })
	if err != nil {
		return nil, "", fmt.Errorf("import %s: %w", tar, err)
	}
	return store, d, os.WriteFile(note, []byte(d), 0o644)
}

// Import publishes a layer that add fills.
func Import(ctx context.Context, store *posix.Store, o tree.Options, add func(*tree.Builder) error) (layer.Digest, error) {
	st, err := store.Stage(ctx)
	if err != nil {
		return "", err
	}
	defer st.Close()
	b, err := tree.New(st.Dir(), o)
	if err != nil {
		return "", err
	}
	defer b.Close()
	if err := add(b); err != nil {
		return "", err
	}
	r, err := b.Finish(ctx, layer.Config{})
	if err != nil {
		return "", err
	}
	return store.PutFiles(ctx, r.Manifest, r.MetaPath, r.DataPath)
}
