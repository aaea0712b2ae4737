package main

import (
	"context"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/spf13/cobra"
)

func newStop() *cobra.Command {
	return eachSandbox("stop", "End sandboxes and release what they held", stopSandbox)
}

func stopSandbox(ctx context.Context, c *client.Client, id string) (*dsecv1.Sandbox, error) {
	r, err := c.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: id})
	return r.GetSandbox(), err
}
