package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// Fork makes sandboxes from a running one's disk. It draws an idempotency key when r has none. The result is as of
// Create.
func (c *Client) Fork(ctx context.Context, r *dsecv1.ForkSandboxRequest) ([]*dsecv1.Sandbox, error) {
	if r.GetIdempotencyKey() == "" {
		r.IdempotencyKey = NewOperationID()
	}
	resp, err := c.Snapshots.ForkSandbox(ctx, r)
	if err != nil {
		return nil, err
	}
	return outcomes(resp.GetResults(), int(r.GetCount()))
}

// outcomes parts what was made from what was not; count 0 = 1.
func outcomes(results []*dsecv1.CreateResult, count int) ([]*dsecv1.Sandbox, error) {
	if want := max(count, 1); len(results) != want {
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("create sandbox: %d results for %d", len(results), want))
	}
	var out []*dsecv1.Sandbox
	var errs []error
	for _, res := range results {
		if res.GetError() != nil {
			errs = append(errs, &CreateError{res.GetError()})
			continue
		}
		out = append(out, res.GetSandbox())
	}
	return out, errors.Join(errs...)
}

// PackDiff makes a layer of what a sandbox or snapshot has changed, and returns it when it is in the catalogue.
// progress may be nil.
func (c *Client) PackDiff(ctx context.Context, r *dsecv1.PackDiffRequest, progress func(*dsecv1.ImportProgress)) (*dsecv1.PackResult, error) {
	s, err := c.Snapshots.PackDiff(ctx, r)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for s.Receive() {
		if result := s.Msg().GetResult(); result != nil {
			return result, nil
		}
		if progress != nil {
			progress(s.Msg().GetProgress())
		}
	}
	if err := s.Err(); err != nil {
		return nil, c.explain(err)
	}
	return nil, fmt.Errorf("pack ended without a result: %w", io.ErrUnexpectedEOF)
}
