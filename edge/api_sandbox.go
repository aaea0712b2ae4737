package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/edge/lifecycle"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

// sandboxAPI serves SandboxService and EdgeService.
type sandboxAPI struct {
	dsecv1connect.UnimplementedSandboxServiceHandler
	e *Edge
}

// CreateSandbox is not for edges: names must be resolved first.
func (a *sandboxAPI) CreateSandbox(context.Context, *dsecv1.CreateSandboxRequest) (*dsecv1.CreateSandboxResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, fmt.Errorf("an edge creates by CreateResolved; ask an API server"))
}

// CreateResolved implements EdgeService.
func (a *sandboxAPI) CreateResolved(ctx context.Context, req *dsecv1.CreateResolvedRequest) (*dsecv1.CreateResolvedResponse, error) {
	results, err := a.e.create(ctx, req)
	if err != nil {
		return nil, wireError(err)
	}
	return &dsecv1.CreateResolvedResponse{Response: &dsecv1.CreateSandboxResponse{Results: results}}, nil
}

// SetCeilings implements EdgeService.
func (a *sandboxAPI) SetCeilings(ctx context.Context, req *dsecv1.SetCeilingsRequest) (*dsecv1.SetCeilingsResponse, error) {
	return a.e.setCeilings(ctx, req), nil
}

// CheckNetwork implements EdgeService.
func (a *sandboxAPI) CheckNetwork(_ context.Context, req *dsecv1.CheckNetworkRequest) (*dsecv1.CheckNetworkResponse, error) {
	policy, err := a.e.programs.policy(req.Policy.GetRules(), req.Policy.GetLimits())
	if err != nil {
		return nil, wireError(err)
	}
	return &dsecv1.CheckNetworkResponse{Warnings: a.e.programs.warnings(policy)}, nil
}

func (a *sandboxAPI) GetSandbox(_ context.Context, req *dsecv1.GetSandboxRequest) (*dsecv1.GetSandboxResponse, error) {
	b, err := a.e.find(req.SandboxId)
	if err != nil {
		return nil, wireError(err)
	}
	return &dsecv1.GetSandboxResponse{Sandbox: b.proto()}, nil
}

const (
	defaultPage = 100
	maxPage     = 1000
)

func pageSize(n int32) (int, error) {
	if n < 0 || n > maxPage {
		return 0, invalid("page_size is %d: want at most %d, or 0 for %d", n, maxPage, defaultPage)
	}
	if n == 0 {
		return defaultPage, nil
	}
	return int(n), nil
}

func (a *sandboxAPI) ListSandboxes(_ context.Context, req *dsecv1.ListSandboxesRequest) (*dsecv1.ListSandboxesResponse, error) {
	size, err := pageSize(req.PageSize)
	if err != nil {
		return nil, wireError(err)
	}
	after, err := parsePageToken(req.PageToken)
	if err != nil {
		return nil, wireError(err)
	}
	var list []*box
	for _, b := range a.e.all() {
		if !hasLabels(b.created.Spec, req.Labels) || req.PageToken != "" && newestFirst(place{b.at.UnixNano(), b.id}, after) <= 0 {
			continue
		}
		state := states[b.state()]
		if len(req.States) == 0 && state != dsecv1.SandboxState_SANDBOX_STATE_STOPPED || slices.Contains(req.States, state) {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(x, y *box) int {
		return newestFirst(place{x.at.UnixNano(), x.id}, place{y.at.UnixNano(), y.id})
	})
	resp := &dsecv1.ListSandboxesResponse{}
	for _, b := range list[:min(size, len(list))] {
		resp.Sandboxes = append(resp.Sandboxes, b.proto())
	}
	if len(list) > size {
		last := list[size-1]
		resp.NextPageToken = fmt.Sprintf("%d.%s", last.at.UnixNano(), last.id)
	}
	return resp, nil
}

// place is a sandbox's place in the list.
type place struct {
	at int64
	id sandbox.ID
}

func newestFirst(x, y place) int { return cmp.Or(cmp.Compare(y.at, x.at), cmp.Compare(x.id, y.id)) }

func parsePageToken(token string) (place, error) {
	if token == "" {
		return place{}, nil
	}
	at, id, _ := strings.Cut(token, ".")
	nanos, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return place{}, invalid("page_token %.64q is none of ours", token)
	}
	return place{nanos, sandbox.ID(id)}, nil
}

func (a *sandboxAPI) StopSandbox(ctx context.Context, req *dsecv1.StopSandboxRequest) (*dsecv1.StopSandboxResponse, error) {
	b, err := a.e.find(req.SandboxId)
	if err == nil {
		err = b.stop(ctx, sandbox.NewFailure(sandbox.KindStopped, "it was stopped by request"))
	}
	if err != nil {
		return nil, wireError(err)
	}
	return &dsecv1.StopSandboxResponse{Sandbox: b.proto()}, nil
}

// SetNetwork works on paused sandboxes too, and resumes none.
func (a *sandboxAPI) SetNetwork(ctx context.Context, req *dsecv1.SetNetworkRequest) (*dsecv1.SetNetworkResponse, error) {
	b, err := a.e.find(req.SandboxId)
	if err != nil {
		return nil, wireError(err)
	}
	resp, err := b.setNetwork(ctx, req)
	return resp, wireError(err)
}

func (a *sandboxAPI) ExplainNetwork(_ context.Context, req *dsecv1.ExplainNetworkRequest) (*dsecv1.ExplainNetworkResponse, error) {
	b, err := a.e.find(req.SandboxId)
	if err != nil {
		return nil, wireError(err)
	}
	resp, err := b.explainNetwork(req)
	return resp, wireError(err)
}

func (a *sandboxAPI) StopSandboxes(ctx context.Context, req *dsecv1.StopSandboxesRequest) (*dsecv1.StopSandboxesResponse, error) {
	if len(req.Labels) == 0 {
		return nil, wireError(invalid("labels are empty: that would stop everything; name at least one label"))
	}
	resp := &dsecv1.StopSandboxesResponse{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	turns := make(chan struct{}, 32)
	for _, b := range a.e.all() {
		if !hasLabels(b.created.Spec, req.Labels) || b.state() == sandbox.StateStopped {
			continue
		}
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			err := b.stop(ctx, sandbox.NewFailure(sandbox.KindStopped, "it was stopped by request, by label"))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				return
			}
			resp.StoppedIds = append(resp.StoppedIds, string(b.id))
		})
	}
	wg.Wait()
	if failed != nil {
		return nil, wireError(failed)
	}
	slices.Sort(resp.StoppedIds)
	return resp, nil
}

func (a *sandboxAPI) PauseSandbox(ctx context.Context, req *dsecv1.PauseSandboxRequest) (*dsecv1.PauseSandboxResponse, error) {
	b, err := a.e.find(req.SandboxId)
	if err == nil {
		err = b.pause(ctx)
	}
	if err != nil {
		return nil, wireError(err)
	}
	return &dsecv1.PauseSandboxResponse{Sandbox: b.proto()}, nil
}

func (a *sandboxAPI) ResumeSandbox(ctx context.Context, req *dsecv1.ResumeSandboxRequest) (*dsecv1.ResumeSandboxResponse, error) {
	b, err := a.e.find(req.SandboxId)
	if err == nil {
		err = b.resume(ctx)
	}
	if err != nil {
		return nil, wireError(err)
	}
	return &dsecv1.ResumeSandboxResponse{Sandbox: b.proto()}, nil
}

func (a *sandboxAPI) ExtendSandbox(_ context.Context, req *dsecv1.ExtendSandboxRequest) (*dsecv1.ExtendSandboxResponse, error) {
	b, err := a.e.find(req.SandboxId)
	if err == nil {
		err = b.extend(req)
	}
	if err != nil {
		return nil, wireError(err)
	}
	return &dsecv1.ExtendSandboxResponse{Sandbox: b.proto()}, nil
}

func (b *box) extend(req *dsecv1.ExtendSandboxRequest) error {
	in, entry := lifecycle.Extend{}, &record.Extended{}
	if req.TtlSeconds != nil {
		if err := checkTTL(*req.TtlSeconds, b.e.cfg.MaxTTL); err != nil {
			return err
		}
		d := seconds(*req.TtlSeconds)
		in.TTL, entry.TtlNanos = &d, (*int64)(&d)
	}
	if req.IdleTimeoutSeconds != nil {
		if err := checkIdle(*req.IdleTimeoutSeconds, b.e.cfg.MaxTTL); err != nil {
			return err
		}
		d := seconds(*req.IdleTimeoutSeconds)
		in.Idle, entry.IdleNanos = &d, (*int64)(&d)
	}
	if in.TTL == nil && in.Idle == nil {
		return invalid("give ttl_seconds, idle_timeout_seconds, or both")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.step(in); err != nil {
		return b.endedError()
	}
	return b.append(&record.Entry{Body: &record.Entry_Extended{Extended: entry}})
}

func (a *sandboxAPI) GetSandboxStats(ctx context.Context, req *dsecv1.GetSandboxStatsRequest) (*dsecv1.GetSandboxStatsResponse, error) {
	b, err := a.e.find(req.SandboxId)
	if err != nil {
		return nil, wireError(err)
	}
	_, inst, err := b.channel() // of a paused one too: reading wakes nothing
	// The node has figures of one without an agent, and of one that is put away.
	if s := saver(inst); err != nil && (inst == nil || !errors.Is(err, sandbox.ErrUnsupported) && (s == nil || b.state() != sandbox.StatePaused)) {
		return nil, wireError(err)
	}
	s, err := inst.Stats(ctx)
	if err != nil {
		return nil, wireError(fmt.Errorf("statistics of sandbox %s: %w", b.id, err))
	}
	return &dsecv1.GetSandboxStatsResponse{Stats: &dsecv1.SandboxStats{
		At: stamp(s.At), CpuUsageUsec: s.CPUUsage.Microseconds(), MemoryBytes: s.MemoryBytes, MemoryPeakBytes: s.MemoryPeakBytes,
		MemoryLimitBytes: s.MemoryLimitBytes, DiskBytes: s.DiskBytes, DiskLimitBytes: s.DiskLimitBytes, Pids: s.Pids,
		PidsLimit: s.PidsLimit, OomKills: s.OOMKills, SavedBytes: s.SavedBytes,
	}}, nil
}
