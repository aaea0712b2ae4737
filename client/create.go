package client

import (
	"context"
	"fmt"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// CreateError is one sandbox that could not be made.
type CreateError struct{ Item *dsecv1.Error }

func (e *CreateError) Error() string {
	text := "create sandbox: " + strings.TrimPrefix(e.Item.GetMessage(), "create sandbox: ")
	if f := e.Item.GetFailure(); f.GetKind() != "" {
		return fmt.Sprintf("%s (%s)", text, f.GetKind())
	}
	return text
}

// Create creates the sandboxes that r asks for. It draws an idempotency key when r has none, so that a broken
// connection does not leave sandboxes that nobody knows. The result holds the sandboxes that were made; when
// some were not, the error joins a *CreateError for each.
func (c *Client) Create(ctx context.Context, r *dsecv1.CreateSandboxRequest) ([]*dsecv1.Sandbox, error) {
	if r.GetIdempotencyKey() == "" {
		r.IdempotencyKey = NewOperationID()
	}
	resp, err := c.Sandboxes.CreateSandbox(ctx, r)
	if err != nil {
		return nil, err
	}
	return outcomes(resp.GetResults(), int(r.GetCount()))
}
