package container

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// pruneEvery is how often the node looks for mounts of layers that were deleted: they keep the disk's space.
const pruneEvery = time.Minute

// pruning prunes until ctx is done.
func (c *mounts) pruning(ctx context.Context) {
	tick := time.NewTicker(pruneEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.prune(ctx)
		}
	}
}

// prune lets go of the layers that are not in the store any more, those that a predecessor left with the holder too.
// Sandboxes that run keep what they use.
func (c *mounts) prune(ctx context.Context) {
	c.mu.Lock()
	known := make([]layer.Digest, 0, len(c.m))
	for d := range c.m {
		known = append(known, d)
	}
	for name := range c.held {
		if d := layer.Digest(strings.TrimPrefix(name, holdName(""))); c.m[d] == nil {
			known = append(known, d)
		}
	}
	c.mu.Unlock()
	for _, d := range known {
		if _, err := c.node.Local(ctx, d); ctx.Err() != nil || !errors.Is(err, sandbox.ErrNotFound) {
			continue
		}
		c.mu.Lock()
		switch m := c.m[d]; {
		case c.closed:
		case m != nil:
			c.drop(m)
		case c.busy[d] == nil:
			_ = c.hold.Drop(holdName(d))
			_ = c.space.Drop(string(d))
		}
		c.mu.Unlock()
	}
}
