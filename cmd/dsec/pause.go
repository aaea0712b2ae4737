package main

import (
	"context"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/spf13/cobra"
)

func newPause() *cobra.Command {
	return eachSandbox("pause", "Freeze sandboxes (any later request resumes them)", func(ctx context.Context, c *client.Client, id string) (*dsecv1.Sandbox, error) {
		r, err := c.Sandboxes.PauseSandbox(ctx, &dsecv1.PauseSandboxRequest{SandboxId: id})
		return r.GetSandbox(), err
	})
}
