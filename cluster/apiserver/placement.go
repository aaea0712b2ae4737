package apiserver

import (
	"context"
	"fmt"
	"math/rand/v2"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// Placement picks the edge for a creation. Admission by the edge is final.
type Placement interface {
	// Pick returns an edge for the spec. Error: ErrUnavailable.
	Pick(ctx context.Context, spec *dsecv1.SandboxSpec) (*Edge, error)
}

// anyEdge picks at random among the edges that answer: enough for one node.
type anyEdge struct{ edges *Edges }

func (p anyEdge) Pick(ctx context.Context, _ *dsecv1.SandboxSpec) (*Edge, error) {
	var up []*Edge
	var why error
	for _, e := range p.edges.All() {
		// The last probe may be a second old: a request may as well try.
		if err := e.Up(); err != nil {
			if err = e.probe(ctx); err != nil {
				why = err
				continue
			}
		}
		up = append(up, e)
	}
	if len(up) == 0 {
		return nil, fmt.Errorf("place sandbox: %w: no edge answers (nothing was made); try again, and see `dsec status`: %w", sandbox.ErrUnavailable, why)
	}
	return up[rand.IntN(len(up))], nil
}
