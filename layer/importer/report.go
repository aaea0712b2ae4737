package importer

import (
	"context"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// reportEvery is how often progress is sent.
const reportEvery = 200 * time.Millisecond

// reporter sends the latest progress of each stage now and then, so that nobody who makes progress waits for
// the client. A client that is gone cancels the import.
type reporter struct {
	send   func(*dsecv1.ImportLayerResponse) error
	cancel context.CancelCauseFunc
	quit   chan struct{}
	done   chan struct{}
	err    error // the goroutine's until done

	mu     sync.Mutex
	stages []*dsecv1.ImportProgress // in the order in which they began
	dirty  map[string]bool
}

// startReporter returns a context that ends with the client, and the reporter, which must be stopped.
func startReporter(ctx context.Context, send func(*dsecv1.ImportLayerResponse) error) (context.Context, *reporter) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &reporter{send: send, cancel: cancel, quit: make(chan struct{}), done: make(chan struct{}), dirty: map[string]bool{}}
	go r.run()
	return ctx, r
}

// set notes progress; it never blocks on the client.
func (r *reporter) set(stage string, done, total int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dirty[stage] = true
	for _, p := range r.stages {
		if p.Stage == stage {
			p.DoneBytes, p.TotalBytes = done, total
			return
		}
	}
	r.stages = append(r.stages, &dsecv1.ImportProgress{Stage: stage, DoneBytes: done, TotalBytes: total})
}

func (r *reporter) run() {
	defer close(r.done)
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if r.err = r.flush(); r.err != nil {
				r.cancel(r.err)
				return
			}
		case <-r.quit:
			r.err = r.flush()
			return
		}
	}
}

// flush sends what is new.
func (r *reporter) flush() error {
	r.mu.Lock()
	var out []*dsecv1.ImportLayerResponse
	for _, p := range r.stages {
		if r.dirty[p.Stage] {
			out = append(out, &dsecv1.ImportLayerResponse{Progress: &dsecv1.ImportProgress{Stage: p.Stage, DoneBytes: p.DoneBytes, TotalBytes: p.TotalBytes}})
		}
	}
	clear(r.dirty)
	r.mu.Unlock()
	for _, m := range out {
		if err := r.send(m); err != nil {
			return err
		}
	}
	return nil
}

// stop sends what is left and waits for the goroutine.
func (r *reporter) stop() error {
	close(r.quit)
	<-r.done
	r.cancel(nil)
	return r.err
}
