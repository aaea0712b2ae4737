package e2b

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	pb "github.com/opendsec/dsec/cluster/e2b/envd/filesystem"
	"github.com/opendsec/dsec/sandbox"
)

// Bounds of watchers that are polled.
const (
	maxWatchers = 4096            // of this process; those of one sandbox are bounded by it
	maxUnpolled = 4096            // events that wait in one
	watcherLife = 5 * time.Minute // without a poll until it is forgotten
)

// watchers are watches that clients ask for news from time to time. They live in this process and end with it: a client then
// hears not_found, and watches anew.
type watchers struct {
	mu   sync.Mutex
	byID map[string]*watcher
}

// watcher collects the events of one watch.
type watcher struct {
	sandbox sandbox.ID
	cancel  context.CancelFunc
	forget  *time.Timer

	mu     sync.Mutex
	events []*pb.FilesystemEvent
	lost   bool
	over   bool
	err    error // why it is over
}

var errNoWatcher = connect.NewError(connect.CodeNotFound, errors.New("there is no such watcher: it was removed, was not asked for 5 minutes, or the service was restarted; make it anew"))

func (ws *watchers) add(w *watcher) (string, error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.byID) >= maxWatchers {
		return "", connect.NewError(connect.CodeResourceExhausted, errors.New("too many watchers: remove some"))
	}
	if ws.byID == nil {
		ws.byID = map[string]*watcher{}
	}
	id := rand.Text()
	ws.byID[id] = w
	w.forget = time.AfterFunc(watcherLife, func() { ws.remove(id, w.sandbox) })
	return id, nil
}

// find returns a watcher of a sandbox, and counts as a poll; nil = there is none.
func (ws *watchers) find(id string, of sandbox.ID) *watcher {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.byID[id]
	if w == nil || w.sandbox != of {
		return nil
	}
	w.forget.Reset(watcherLife)
	return w
}

func (ws *watchers) remove(id string, of sandbox.ID) bool {
	ws.mu.Lock()
	w := ws.byID[id]
	if w == nil || w.sandbox != of {
		ws.mu.Unlock()
		return false
	}
	delete(ws.byID, id)
	w.forget.Stop()
	ws.mu.Unlock()
	w.cancel()
	return true
}

// CreateWatcher begins to watch, for GetWatcherEvents to ask what happened.
func (f filesystem) CreateWatcher(ctx context.Context, req *pb.CreateWatcherRequest) (*pb.CreateWatcherResponse, error) {
	t := targetOf(ctx)
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel) // until it has begun
	w, s, err := f.d.openWatch(life, req.GetPath(), req.GetRecursive(), req.GetIncludeEntry())
	if err == nil && !stop() {
		_ = s.Close()
		err = connect.NewError(connect.CodeCanceled, context.Cause(ctx))
	}
	if err != nil {
		cancel()
		return nil, f.failed(ctx, err)
	}
	one := &watcher{sandbox: t.id, cancel: cancel}
	id, err := f.d.watchers.add(one)
	if err != nil {
		cancel()
		_ = s.Close()
		return nil, err
	}
	go func() {
		defer s.Close()
		for s.Receive() {
			if s.Msg().GetFile() == nil {
				continue
			}
			for _, e := range w.tell(s.Msg().GetFile()) {
				one.add(life, w, e)
			}
		}
		one.mu.Lock()
		one.over, one.err = true, w.end(life, s.Err())
		one.mu.Unlock()
	}()
	return &pb.CreateWatcherResponse{WatcherId: id}, nil
}

func (w *watcher) add(ctx context.Context, of *watched, e *dsecv1.FileEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) >= maxUnpolled || e.GetKind() == dsecv1.FileEventKind_FILE_EVENT_KIND_LOST {
		w.lost = true
	}
	if w.lost {
		return
	}
	w.mu.Unlock()
	out := of.event(ctx, e) // may ask the sandbox
	w.mu.Lock()
	w.events = append(w.events, out)
}

// GetWatcherEvents takes what has happened since the last time. What was left out is told once, as an error.
func (f filesystem) GetWatcherEvents(ctx context.Context, req *pb.GetWatcherEventsRequest) (*pb.GetWatcherEventsResponse, error) {
	w := f.d.watchers.find(req.GetWatcherId(), targetOf(ctx).id)
	if w == nil {
		return nil, errNoWatcher
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out := &pb.GetWatcherEventsResponse{Events: w.events}
	switch {
	case len(w.events) > 0:
		w.events = nil
		return out, nil
	case w.lost:
		w.lost = false
		return nil, errLost
	case w.over && w.err != nil:
		return nil, w.err
	}
	return out, nil
}

// RemoveWatcher ends a watcher.
func (f filesystem) RemoveWatcher(ctx context.Context, req *pb.RemoveWatcherRequest) (*pb.RemoveWatcherResponse, error) {
	if !f.d.watchers.remove(req.GetWatcherId(), targetOf(ctx).id) {
		return nil, errNoWatcher
	}
	return &pb.RemoveWatcherResponse{}, nil
}
