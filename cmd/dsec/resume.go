package main

import (
	"context"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/spf13/cobra"
)

func newResume() *cobra.Command {
	return eachSandbox("resume", "Thaw sandboxes", func(ctx context.Context, c *client.Client, id string) (*dsecv1.Sandbox, error) {
		r, err := c.Sandboxes.ResumeSandbox(ctx, &dsecv1.ResumeSandboxRequest{SandboxId: id})
		return r.GetSandbox(), err
	})
}
