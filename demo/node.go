package main

import (
	"context"

	"github.com/opendsec/dsec/internal/testkit"
)

// startNode starts the demo's own node.
func startNode(ctx context.Context, o options) (*testkit.Node, error) {
	done := step("starting a node")
	n, err := testkit.StartNode(ctx, o.dsec, o.state)
	if err != nil {
		return nil, err
	}
	done(n.URL)
	return n, nil
}
