package edge

import (
	"context"
	"os"
	"runtime"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// nodeAPI serves NodeService.
type nodeAPI struct{ e *Edge }

// Pooled is a backend that can tell about its pool of writable layers.
type Pooled interface {
	// Pool returns the pool's size and what of it is used, in bytes.
	Pool(ctx context.Context) (size, used int64, err error)
}

func (a *nodeAPI) GetNode(ctx context.Context, _ *dsecv1.GetNodeRequest) (*dsecv1.GetNodeResponse, error) {
	resp := &dsecv1.GetNodeResponse{
		Edge: string(a.e.cfg.ID), Version: a.e.cfg.Version, Cpus: int32(runtime.NumCPU()),
		LiveSandboxes: int32(a.e.admit.count()), Stages: a.e.stages.costs(), StartedAt: stamp(a.e.started),
	}
	if a.e.cfg.Network != nil {
		resp.Network = &dsecv1.NodeNetwork{EnforcedBy: a.e.cfg.NetworkBy, Lacks: a.e.cfg.NetworkLacks}
	} else {
		resp.NetworkAbsent = a.e.cfg.NetworkAbsent
	}
	var err error
	if resp.MemoryBytes, err = totalMemory(); err != nil {
		return nil, wireError(err)
	}
	if resp.MemoryAvailableBytes, err = a.e.cfg.Clock.AvailableMemory(); err != nil {
		return nil, wireError(err)
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		resp.Kernel = strings.TrimSpace(string(b))
	}
	if f := a.e.cfg.SavedSpace; f != nil {
		if resp.SavedSpaceBytes, resp.SavedSpaceUsedBytes, err = f(); err != nil {
			a.e.log.Warn("size of what machines have saved", "err", err)
		}
	}
	for _, b := range a.e.backends {
		ready := int32(b.Warm())
		resp.WarmShells += ready
		if resp.Warm == nil {
			resp.Warm = map[string]int32{}
		}
		resp.Warm[string(b.Name())] = ready
		if p, ok := b.(Pooled); ok {
			size, used, err := p.Pool(ctx)
			if err != nil {
				a.e.log.Warn("size of the pool", "backend", b.Name(), "err", err)
				continue
			}
			resp.PoolBytes += size
			resp.PoolUsedBytes += used
		}
	}
	return resp, nil
}

// ListServices implements NodeService.
func (a *nodeAPI) ListServices(context.Context, *dsecv1.ListServicesRequest) (*dsecv1.ListServicesResponse, error) {
	resp := &dsecv1.ListServicesResponse{}
	c := a.e.programs.catalog()
	for _, name := range c.Names() {
		if s, ok := c.Get(name); ok {
			resp.Services = append(resp.Services, &dsecv1.NetworkService{Name: name, Title: s.Title, Domains: s.Domains, Leaks: s.Leaks})
		}
	}
	return resp, nil
}
