package edge

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/sandbox"
)

// WatchDirectory implements FileService.
func (a *fileAPI) WatchDirectory(ctx context.Context, req *dsecv1.WatchDirectoryRequest, stream *connect.ServerStream[dsecv1.WatchDirectoryResponse]) error {
	return wireError(a.watch(ctx, req, stream.Send))
}

func (a *fileAPI) watch(ctx context.Context, req *dsecv1.WatchDirectoryRequest, send func(*dsecv1.WatchDirectoryResponse) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var w *aether.Watch
	// Only its beginning counts as activity.
	err := a.enter(ctx, req.SandboxId, req.User, []string{req.Path}, func(c *aether.Conn) (err error) {
		w, err = c.Watch(ctx, req.Path, req.User, req.Recursive)
		return err
	})
	if err != nil {
		return err
	}
	b, err := a.e.find(req.SandboxId)
	if err != nil {
		w.Close()
		return err
	}
	events, failed := make(chan wire.WatchEvent), make(chan error, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for {
			e, err := w.Next()
			if err != nil {
				failed <- err
				return
			}
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() { cancel(); w.Close(); <-read }()
	if err := send(&dsecv1.WatchDirectoryResponse{Event: &dsecv1.WatchDirectoryResponse_Started{Started: &dsecv1.WatchStarted{}}}); err != nil {
		return err
	}
	keepAlive := time.NewTicker(a.e.cfg.KeepAlive)
	defer keepAlive.Stop()
	for {
		var out *dsecv1.WatchDirectoryResponse
		select {
		case e := <-events:
			out = &dsecv1.WatchDirectoryResponse{Event: &dsecv1.WatchDirectoryResponse_File{File: fileEvent(e)}}
		case <-keepAlive.C:
			out = &dsecv1.WatchDirectoryResponse{Event: &dsecv1.WatchDirectoryResponse_KeepAlive{KeepAlive: &dsecv1.KeepAlive{}}}
		case err := <-failed:
			if errors.Is(err, aether.ErrClosed) {
				if b.ending() {
					return b.ended()
				}
				return fmt.Errorf("watch %s in sandbox %s: the connection to it broke, watch again: %w", req.Path, b.id, sandbox.ErrUnavailable)
			}
			return err
		case <-b.gone:
			return b.ended()
		case <-a.e.closing:
			return errClosing
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := send(out); err != nil {
			return err
		}
	}
}

// ended is the error of requests to a sandbox that is ending or has ended.
func (b *box) ended() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.endedError()
}

var fileEventKinds = map[wire.WatchKind]dsecv1.FileEventKind{
	wire.WatchCreated:    dsecv1.FileEventKind_FILE_EVENT_KIND_CREATED,
	wire.WatchWritten:    dsecv1.FileEventKind_FILE_EVENT_KIND_WRITTEN,
	wire.WatchRemoved:    dsecv1.FileEventKind_FILE_EVENT_KIND_REMOVED,
	wire.WatchMoved:      dsecv1.FileEventKind_FILE_EVENT_KIND_MOVED,
	wire.WatchAttributes: dsecv1.FileEventKind_FILE_EVENT_KIND_ATTRIBUTES,
	wire.WatchLost:       dsecv1.FileEventKind_FILE_EVENT_KIND_LOST,
}

func fileEvent(e wire.WatchEvent) *dsecv1.FileEvent {
	out := &dsecv1.FileEvent{Kind: fileEventKinds[e.Kind], Path: clip(e.Name, len(e.Name)), Directory: e.Dir}
	if !utf8.ValidString(e.Name) {
		out.PathBytes = []byte(e.Name)
	}
	return out
}
