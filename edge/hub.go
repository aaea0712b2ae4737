package edge

import (
	"sync"
	"sync/atomic"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

// maxBehind bounds the events that a follower may lag behind before it is cut off.
const maxBehind = 1024

// hub hands new events to those who follow them. Publishing never waits: a follower that is too slow is cut
// off and told where to go on.
type hub struct {
	count atomic.Int32 // of followers; without any, nothing is built

	mu        sync.Mutex
	followers map[*follower]struct{}
}

func newHub() *hub { return &hub{followers: map[*follower]struct{}{}} }

// follower gets the events of one sandbox, or of all that carry its labels.
type follower struct {
	id     sandbox.ID
	labels map[string]string
	events chan *dsecv1.Event // closed when it was cut off
}

func (h *hub) follow(id sandbox.ID, labels map[string]string) *follower {
	f := &follower{id: id, labels: labels, events: make(chan *dsecv1.Event, maxBehind)}
	h.mu.Lock()
	h.followers[f] = struct{}{}
	h.mu.Unlock()
	h.count.Add(1)
	return f
}

func (h *hub) leave(f *follower) {
	h.mu.Lock()
	delete(h.followers, f)
	h.mu.Unlock()
	h.count.Add(-1)
}

func (h *hub) publish(b *box, e *record.Entry) {
	if h.count.Load() == 0 {
		return
	}
	event := eventOf(b.id, e)
	if event == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for f := range h.followers {
		if f.id != "" && f.id != b.id || !hasLabels(b.created.GetSpec(), f.labels) {
			continue
		}
		select {
		case f.events <- event:
		default:
			delete(h.followers, f)
			close(f.events)
		}
	}
}

func hasLabels(spec *dsecv1.SandboxSpec, want map[string]string) bool {
	for k, v := range want {
		if got, ok := spec.GetLabels()[k]; !ok || got != v {
			return false
		}
	}
	return true
}
