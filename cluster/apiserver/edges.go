package apiserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// Edges is the set of edges that this API server forwards to.
type Edges struct {
	all    []*Edge
	asking sync.Mutex // one round of questions about unknown ids at a time
}

// NewEdges takes endpoints (unix:///path or http://host:port). Error: ErrInvalid.
func NewEdges(endpoints []string) (*Edges, error) {
	es := &Edges{}
	for _, ep := range endpoints {
		e, err := newEdge(ep)
		if err != nil {
			return nil, err
		}
		es.all = append(es.all, e)
	}
	return es, nil
}

// Run probes every edge until ctx is done.
func (es *Edges) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		es.probeAll(ctx)
		select {
		case <-ctx.Done():
			for _, e := range es.all {
				e.transport.CloseIdleConnections()
			}
			return
		case <-tick.C:
		}
	}
}

func (es *Edges) probeAll(ctx context.Context) {
	var wg sync.WaitGroup
	for _, e := range es.all {
		wg.Go(func() { _ = e.probe(ctx) })
	}
	wg.Wait()
}

// All returns every edge. Each must be asked: leaving out one that is down would make a list look complete.
func (es *Edges) All() []*Edge { return es.all }

// Find returns the edge that a sandbox lives on. Errors: ErrNotFound when every edge is known and none is it,
// ErrUnavailable when some edge has not told its id yet.
func (es *Edges) Find(ctx context.Context, id sandbox.EdgeID) (*Edge, error) {
	if e, _ := es.find(id); e != nil {
		return e, nil
	}
	es.asking.Lock()
	defer es.asking.Unlock()
	if e, unknown := es.find(id); e != nil || len(unknown) > 0 {
		var wg sync.WaitGroup
		for _, e := range unknown {
			wg.Go(func() { _ = e.probe(ctx) })
		}
		wg.Wait()
	}
	e, unknown := es.find(id)
	if e != nil {
		return e, nil
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("edge %s: %w: %d of %d edges have not answered since this API server started; try again",
			id, sandbox.ErrUnavailable, len(unknown), len(es.all))
	}
	return nil, fmt.Errorf("sandbox: %w: no edge of this service is called %q; is the id from another one?", sandbox.ErrNotFound, id)
}

func (es *Edges) find(id sandbox.EdgeID) (e *Edge, unknown []*Edge) {
	for _, e := range es.all {
		switch e.ID() {
		case id:
			return e, nil
		case "":
			unknown = append(unknown, e)
		}
	}
	return nil, unknown
}
