package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/opendsec/dsec/internal/testkit"
)

const (
	storeRate  = 100e6 // bytes a second
	storeDelay = 2 * time.Millisecond
)

// remote is a node whose layers lie in a throttled S3 store.
type remote struct {
	*testkit.Node
	b     *bench
	state string
	store *testkit.S3
	slow  *throttle
	args  []string
}

func (b *bench) remote(ctx context.Context, work string, files http.Handler, opts ...string) (*remote, error) {
	r := &remote{b: b, state: filepath.Join(work, "node")}
	var err error
	if r.store, err = testkit.StartS3(ctx, filepath.Join(work, "s3"), "layers"); err != nil {
		return nil, err
	}
	if r.slow, err = newThrottle(r.store.Endpoint, files, storeRate, storeDelay); err != nil {
		return nil, errors.Join(err, r.store.Stop())
	}
	keys := filepath.Join(work, "credentials")
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", r.store.Access, r.store.Secret)
	if err := os.WriteFile(keys, []byte(text), 0o600); err != nil {
		return nil, err
	}
	r.args = append([]string{"--opt", fmt.Sprintf("store=s3://layers?endpoint=%s&credentials=%s", r.slow.URL, keys)}, opts...)
	return r, r.up(ctx)
}

func (r *remote) up(ctx context.Context) (err error) {
	r.Node, err = testkit.StartNode(ctx, r.b.dsec, r.state, r.args...)
	return err
}

// forget starts the node again without anything of any layer.
func (r *remote) forget(ctx context.Context) error {
	if _, err := r.Stop(); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(r.state, "lazy")); err != nil {
		return err
	}
	return r.up(ctx)
}

func (r *remote) close() error {
	left, err := r.Stop()
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("left behind: %v", left))
	}
	r.slow.close()
	return errors.Join(err, r.store.Stop())
}

// compressed mounts a file system that compresses what it holds, of size bytes at most, at work/name: the store of a burst would
// not fit on a small disk. It costs the store some of the processors' time, and so what reads from it.
func compressed(ctx context.Context, work, name string, size int64) (unmount func() error, err error) {
	file, dir := filepath.Join(work, name+".btrfs"), filepath.Join(work, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	err = command(ctx, "sh", "-c", `truncate -s "$2" "$0" && mkfs.btrfs -q "$0" && mount -o loop,noatime,compress=zstd:1 "$0" "$1"`, file, dir, fmt.Sprint(size))
	if err != nil {
		return nil, err
	}
	return func() error { return exec.Command("umount", dir).Run() }, nil
}
