package fncall

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/backend/fncall"
	"github.com/opendsec/dsec/sandbox"
)

// Which key a request was made with, and which project that belongs to; API servers set both.
const (
	keyHeader     = "Dsec-Key-Id"
	projectHeader = "Dsec-Project"
)

const (
	// maxBatch is how many calls one batch holds.
	maxBatch = 10_000
	// maxBatches bounds the batches that are served at once: each holds its request in memory. Of a project half of them.
	maxBatches = 64
	// maxHeld bounds the requests that are being served, bytes: inputs of calls that wait are kept in memory. Of a
	// project half of it.
	maxHeld = 1 << 30
	// ahead is how many calls of a batch wait in line: enough to leave no place empty.
	ahead = 32
)

// API serves calls.
type API struct {
	dsecv1connect.UnimplementedFnCallServiceHandler
	s       *fncall.Service
	batches *share
	held    *share // bytes of the requests that are being served
	setBase func(name, base string) error
}

// New makes the API of a service. setBase keeps what SetRuntime says.
func New(s *fncall.Service, setBase func(name, base string) error) *API {
	return &API{s: s, batches: newShare(maxBatches), held: newShare(maxHeld), setBase: setBase}
}

// Handler returns where and what to serve.
func (a *API) Handler(opts ...connect.HandlerOption) (string, http.Handler) {
	return dsecv1connect.NewFnCallServiceHandler(a, opts...)
}

var codes = []struct {
	err  error
	code connect.Code
}{
	{sandbox.ErrInvalid, connect.CodeInvalidArgument},
	{sandbox.ErrNotFound, connect.CodeNotFound},
	{sandbox.ErrFailedPrecondition, connect.CodeFailedPrecondition},
	{sandbox.ErrAlreadyExists, connect.CodeAlreadyExists},
	{sandbox.ErrExhausted, connect.CodeResourceExhausted},
	{sandbox.ErrUnavailable, connect.CodeUnavailable},
	{sandbox.ErrUnsupported, connect.CodeUnimplemented},
	{context.DeadlineExceeded, connect.CodeDeadlineExceeded},
	{context.Canceled, connect.CodeCanceled},
}

// wireError makes an error one for the wire. Who finds the line full is told when to come again.
func wireError(err error) error {
	out := connect.NewError(connect.CodeInternal, err)
	for _, c := range codes {
		if errors.Is(err, c.err) {
			out = connect.NewError(c.code, err)
			break
		}
	}
	if c := out.Code(); c == connect.CodeResourceExhausted || c == connect.CodeUnavailable {
		out.Meta().Set("Retry-After", "1")
	}
	return out
}

func item(err error) *dsecv1.Error {
	return &dsecv1.Error{Code: connect.CodeOf(wireError(err)).String(), Message: err.Error()}
}

// caller is who asks.
type caller struct{ key, project string }

func callerOf(ctx context.Context) caller {
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		h := info.RequestHeader()
		return caller{key: h.Get(keyHeader), project: h.Get(projectHeader)}
	}
	return caller{}
}

// hold counts a request that is being served; the function that it returns ends that. Error: ErrExhausted.
func (a *API) hold(ctx context.Context, r proto.Message) (release func(), err error) {
	release, ok := a.held.take(callerOf(ctx).project, int64(proto.Size(r)))
	if !ok {
		return nil, wireError(fmt.Errorf("%w: the calls that wait hold %d MiB of input, or half of that for this project alone: try again in a moment", sandbox.ErrExhausted, maxHeld>>20))
	}
	return release, nil
}

// Call runs one call.
func (a *API) Call(ctx context.Context, r *dsecv1.CallRequest) (*dsecv1.CallResponse, error) {
	release, err := a.hold(ctx, r)
	if err != nil {
		return nil, err
	}
	defer release()
	resp, err := a.call(ctx, callerOf(ctx), r)
	if err != nil {
		return nil, wireError(err)
	}
	return resp, nil
}

func (a *API) call(ctx context.Context, who caller, r *dsecv1.CallRequest) (*dsecv1.CallResponse, error) {
	req, err := request(r)
	if err != nil {
		return nil, err
	}
	req.Key = who.key
	res, err := a.s.Call(ctx, who.project, req)
	if err != nil {
		return nil, err
	}
	return &dsecv1.CallResponse{OperationId: r.GetOperationId(), Result: result(res)}, nil
}

// Judge judges one submission.
func (a *API) Judge(ctx context.Context, r *dsecv1.JudgeRequest) (*dsecv1.JudgeResponse, error) {
	release, err := a.hold(ctx, r)
	if err != nil {
		return nil, err
	}
	defer release()
	resp, err := a.judge(ctx, callerOf(ctx), r)
	if err != nil {
		return nil, wireError(err)
	}
	return resp, nil
}

func (a *API) judge(ctx context.Context, who caller, r *dsecv1.JudgeRequest) (*dsecv1.JudgeResponse, error) {
	sub, err := submission(r)
	if err != nil {
		return nil, err
	}
	j, err := a.s.Judge(ctx, who.project, sub)
	if err != nil {
		return nil, err
	}
	return &dsecv1.JudgeResponse{OperationId: r.GetOperationId(), Result: judgement(sub, j)}, nil
}

// CallBatch runs many calls.
func (a *API) CallBatch(ctx context.Context, r *dsecv1.CallBatchRequest, out *connect.ServerStream[dsecv1.CallBatchResponse]) error {
	release, err := a.hold(ctx, r)
	if err != nil {
		return err
	}
	defer release()
	calls := r.GetCalls()
	err = a.batch(ctx, len(calls), func(ctx context.Context, who caller, n int) func() error {
		resp, err := patiently(ctx, func() (*dsecv1.CallResponse, error) { return a.call(ctx, who, calls[n]) })
		msg := &dsecv1.CallBatchResponse{Event: &dsecv1.CallBatchResponse_Response{Response: resp}}
		if err != nil {
			msg.Event = &dsecv1.CallBatchResponse_Error{Error: &dsecv1.CallError{OperationId: calls[n].GetOperationId(), Error: item(err)}}
		}
		calls[n] = nil
		return func() error { return out.Send(msg) }
	})
	if err != nil {
		return wireError(err)
	}
	return out.Send(&dsecv1.CallBatchResponse{Event: &dsecv1.CallBatchResponse_Done{Done: int32(len(calls))}})
}

// JudgeBatch judges many submissions.
func (a *API) JudgeBatch(ctx context.Context, r *dsecv1.JudgeBatchRequest, out *connect.ServerStream[dsecv1.JudgeBatchResponse]) error {
	release, err := a.hold(ctx, r)
	if err != nil {
		return err
	}
	defer release()
	subs := r.GetSubmissions()
	err = a.batch(ctx, len(subs), func(ctx context.Context, who caller, n int) func() error {
		resp, err := patiently(ctx, func() (*dsecv1.JudgeResponse, error) { return a.judge(ctx, who, subs[n]) })
		msg := &dsecv1.JudgeBatchResponse{Event: &dsecv1.JudgeBatchResponse_Response{Response: resp}}
		if err != nil {
			msg.Event = &dsecv1.JudgeBatchResponse_Error{Error: &dsecv1.CallError{OperationId: subs[n].GetOperationId(), Error: item(err)}}
		}
		subs[n] = nil
		return func() error { return out.Send(msg) }
	})
	if err != nil {
		return wireError(err)
	}
	return out.Send(&dsecv1.JudgeBatchResponse{Event: &dsecv1.JudgeBatchResponse_Done{Done: int32(len(subs))}})
}

// patiently runs an item of a batch, which waits where the line is full.
func patiently[T any](ctx context.Context, run func() (T, error)) (T, error) {
	for {
		v, err := run()
		if !errors.Is(err, sandbox.ErrExhausted) {
			return v, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
}

// batch runs n items, a few at a time, and sends what run returns for each. A client that reads slowly slows it down.
func (a *API) batch(ctx context.Context, n int, run func(ctx context.Context, who caller, n int) (send func() error)) error {
	if n == 0 || n > maxBatch {
		return fmt.Errorf("batch of %d: %w: want 1 to %d", n, sandbox.ErrInvalid, maxBatch)
	}
	who := callerOf(ctx)
	release, ok := a.batches.take(who.project, 1)
	if !ok {
		return fmt.Errorf("%w: %d batches are being served, or half as many of this project: try again in a moment", sandbox.ErrExhausted, maxBatches)
	}
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	next, sends := make(chan int), make(chan func() error)
	for range min(ahead, n) {
		wg.Go(func() {
			for k := range next {
				select {
				case sends <- run(ctx, who, k):
				case <-ctx.Done():
					return
				}
			}
		})
	}
	wg.Go(func() {
		defer close(next)
		for k := range n {
			select {
			case next <- k:
			case <-ctx.Done():
				return
			}
		}
	})
	for range n {
		select {
		case send := <-sends:
			if err := send(); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// ListRuntimes tells about all runtimes.
func (a *API) ListRuntimes(context.Context, *dsecv1.ListRuntimesRequest) (*dsecv1.ListRuntimesResponse, error) {
	out := &dsecv1.ListRuntimesResponse{}
	for _, r := range a.s.Runtimes() {
		out.Runtimes = append(out.Runtimes, &dsecv1.Runtime{
			Name: r.Name, Base: r.Base, Warm: r.Running, Cells: int32(r.Cells), Calls: r.Calls, TimedOut: r.TimedOut, InfraFailures: r.Broken,
			CompileCacheHits: r.CacheHits, Refused: r.Refused, CpuSeconds: r.CPU.Seconds(), Waiting: int32(r.Waiting),
			P50Usec: float64(r.P50.Microseconds()), P99Usec: float64(r.P99.Microseconds()),
		})
	}
	return out, nil
}

// SetRuntime says over which base a runtime is.
func (a *API) SetRuntime(_ context.Context, r *dsecv1.SetRuntimeRequest) (*dsecv1.SetRuntimeResponse, error) {
	if err := a.setBase(r.GetName(), r.GetBase()); err != nil {
		return nil, wireError(err)
	}
	return &dsecv1.SetRuntimeResponse{}, nil
}
