package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"google.golang.org/protobuf/proto"
)

// Call runs one function call. It draws an operation id when r has none, so that a broken connection does not run it
// twice. Errors are for calls that were not run; how a call ended is in its result.
func (c *Client) Call(ctx context.Context, r *dsecv1.CallRequest) (*dsecv1.CallResult, error) {
	if r.GetOperationId() == "" {
		r.OperationId = NewOperationID()
	}
	resp, err := c.Calls.Call(ctx, r)
	if err != nil {
		return nil, err
	}
	return resp.GetResult(), nil
}

// Judge judges one submission; see Call.
func (c *Client) Judge(ctx context.Context, r *dsecv1.JudgeRequest) (*dsecv1.JudgeResult, error) {
	if r.GetOperationId() == "" {
		r.OperationId = NewOperationID()
	}
	resp, err := c.Calls.Judge(ctx, r)
	if err != nil {
		return nil, err
	}
	return resp.GetResult(), nil
}

// CallError is a call of a batch that was not run.
type CallError struct{ Item *dsecv1.Error }

func (e *CallError) Error() string { return "function call: " + e.Item.GetMessage() }

// CallBatch runs any number of calls and hands each one's result, or why it was not run, to f, in the order in which
// they end; f is called once for each index of calls, one at a time. Parts of the batch whose connection breaks are sent
// again, without what has come. Calls get operation ids of their own where they have none.
func (c *Client) CallBatch(ctx context.Context, calls []*dsecv1.CallRequest, f func(n int, r *dsecv1.CallResult, err error)) error {
	b := batch[*dsecv1.CallRequest]{c: c, items: calls, id: func(r *dsecv1.CallRequest) *string { return &r.OperationId }}
	return b.run(ctx, func(ctx context.Context, part []*dsecv1.CallRequest, done func(id string, tell func(n int))) error {
		s, err := c.Calls.CallBatch(ctx, &dsecv1.CallBatchRequest{Calls: part})
		if err != nil {
			return err
		}
		defer s.Close()
		for s.Receive() {
			switch e := s.Msg().GetEvent().(type) {
			case *dsecv1.CallBatchResponse_Response:
				done(e.Response.GetOperationId(), func(n int) { f(n, e.Response.GetResult(), nil) })
			case *dsecv1.CallBatchResponse_Error:
				done(e.Error.GetOperationId(), func(n int) { f(n, nil, &CallError{e.Error.GetError()}) })
			case *dsecv1.CallBatchResponse_Done:
				return nil
			}
		}
		return cut(s.Err())
	})
}

// JudgeBatch judges any number of submissions; as CallBatch.
func (c *Client) JudgeBatch(ctx context.Context, subs []*dsecv1.JudgeRequest, f func(n int, r *dsecv1.JudgeResult, err error)) error {
	b := batch[*dsecv1.JudgeRequest]{c: c, items: subs, id: func(r *dsecv1.JudgeRequest) *string { return &r.OperationId }}
	return b.run(ctx, func(ctx context.Context, part []*dsecv1.JudgeRequest, done func(id string, tell func(n int))) error {
		s, err := c.Calls.JudgeBatch(ctx, &dsecv1.JudgeBatchRequest{Submissions: part})
		if err != nil {
			return err
		}
		defer s.Close()
		for s.Receive() {
			switch e := s.Msg().GetEvent().(type) {
			case *dsecv1.JudgeBatchResponse_Response:
				done(e.Response.GetOperationId(), func(n int) { f(n, e.Response.GetResult(), nil) })
			case *dsecv1.JudgeBatchResponse_Error:
				done(e.Error.GetOperationId(), func(n int) { f(n, nil, &CallError{e.Error.GetError()}) })
			case *dsecv1.JudgeBatchResponse_Done:
				return nil
			}
		}
		return cut(s.Err())
	})
}

// cut is the error of a stream that ended before its last message.
func cut(err error) error {
	if err == nil {
		return connect.NewError(connect.CodeUnavailable, errors.New("the stream of a batch was cut"))
	}
	return err
}

// Parts of a batch: what one request holds, and how many are under way.
const (
	partItems = 500
	partBytes = 4 << 20
	partsAt   = 2
)

// batch is a list of requests with operation ids.
type batch[R proto.Message] struct {
	c     *Client
	items []R
	id    func(R) *string

	mu   sync.Mutex
	open map[string]int // indices of those without a result
}

// send sends a part of a batch and reads results until the last message or an error.
type send[R proto.Message] func(ctx context.Context, part []R, done func(id string, tell func(n int))) error

func (b *batch[R]) run(ctx context.Context, s send[R]) error {
	b.open = make(map[string]int, len(b.items))
	for n, r := range b.items {
		id := b.id(r)
		if *id == "" {
			*id = NewOperationID()
		}
		if at, twice := b.open[*id]; twice {
			return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("batch: items %d and %d have one operation id, %q", at, n, *id))
		}
		b.open[*id] = n
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts := make(chan []R)
	errs := make(chan error, partsAt)
	for range partsAt {
		go func() {
			var err error
			for part := range parts {
				if err == nil {
					if err = b.part(ctx, part, s); err != nil {
						cancel()
					}
				}
			}
			errs <- err
		}()
	}
	for at := 0; at < len(b.items) && ctx.Err() == nil; {
		n, size := 0, 0
		for at+n < len(b.items) && n < partItems && (n == 0 || size < partBytes) {
			size += proto.Size(b.items[at+n])
			n++
		}
		parts <- b.items[at : at+n]
		at += n
	}
	close(parts)
	var first error
	for range partsAt {
		if err := <-errs; err != nil && (first == nil || errors.Is(first, context.Canceled)) {
			first = err
		}
	}
	if first == nil {
		first = ctx.Err()
	}
	return b.c.explain(first)
}

// part runs one part to its end, again where the connection broke.
func (b *batch[R]) part(ctx context.Context, part []R, s send[R]) error {
	for wait := b.c.backoff(); ; {
		err := s(ctx, part, func(id string, tell func(n int)) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.c.reached.Store(true)
			if n, ok := b.open[id]; ok {
				delete(b.open, id)
				tell(n)
			}
		})
		left := part[:0:0]
		b.mu.Lock()
		for _, r := range part {
			if _, ok := b.open[*b.id(r)]; ok {
				left = append(left, r)
			}
		}
		b.mu.Unlock()
		if len(left) == 0 {
			return nil
		}
		if err == nil {
			return connect.NewError(connect.CodeInternal, fmt.Errorf("batch: %d of %d results are missing", len(left), len(part)))
		}
		if len(left) < len(part) {
			wait.progress()
		}
		full := connect.IsWireError(err) && connect.CodeOf(err) == connect.CodeResourceExhausted // batches wait
		if (!transient(ctx, err) && !full) || !wait.wait(ctx) {
			return err
		}
		part = left
	}
}
