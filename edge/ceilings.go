package edge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

// ceilings are the policies of projects, as the API servers told last. They are not kept on disk: each sandbox's record
// has its own, and whoever asks for a sandbox says what holds for it.
type ceilings struct {
	mu       sync.Mutex // guards all below
	revision int64
	projects map[string]*dsecv1.NetworkPolicy
}

// of is the ceiling of a project: the newer of what is known here and of what the caller knows.
func (c *ceilings) of(project string, policy *dsecv1.NetworkPolicy, revision int64) (*dsecv1.NetworkLayer, int64) {
	if project == "" {
		project = defaultProject
	}
	c.mu.Lock()
	if c.revision > revision {
		policy, revision = c.projects[project], c.revision
	}
	c.mu.Unlock()
	if policy == nil {
		return nil, revision
	}
	return &dsecv1.NetworkLayer{Source: "project " + project, Policy: policy}, revision
}

// none closes everything.
var none = &dsecv1.NetworkPolicy{Rules: []*dsecv1.NetworkRule{{Target: "none", Allow: true}}}

// setCeilings takes the ceilings of all projects, and puts running sandboxes under them.
func (e *Edge) setCeilings(ctx context.Context, req *dsecv1.SetCeilingsRequest) *dsecv1.SetCeilingsResponse {
	resp := &dsecv1.SetCeilingsResponse{}
	projects := map[string]*dsecv1.NetworkPolicy{}
	for name, policy := range req.Projects {
		projects[name] = policy
		if _, err := e.programs.policy(policy.GetRules(), policy.GetLimits()); err != nil {
			// Not to be understood is not to be without.
			projects[name] = none
			resp.Errors = append(resp.Errors, fmt.Sprintf("project %s: everything is closed to it on node %s: %v", name, e.cfg.ID, err))
		}
	}
	e.ceilings.mu.Lock()
	if req.Revision >= e.ceilings.revision {
		e.ceilings.revision, e.ceilings.projects = req.Revision, projects
	}
	e.ceilings.mu.Unlock()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var changed atomic.Int32
	turns := make(chan struct{}, 32)
	for _, b := range e.all() {
		if !b.ceilingIsOld() {
			continue
		}
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			did, err := b.takeCeiling(ctx)
			if did {
				changed.Add(1)
			}
			if err != nil {
				e.log.Error("a project's ceiling is not in force", "sandbox", b.id, "err", err)
				mu.Lock()
				defer mu.Unlock()
				resp.Errors = append(resp.Errors, err.Error())
			}
		})
	}
	wg.Wait()
	resp.Changed = changed.Load()
	return resp
}

// ceilingIsOld tells, without waiting, whether the sandbox may need its project's ceiling, or is just getting it.
func (b *box) ceilingIsOld() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.net.asked == nil || b.machine.State() == sandbox.StateStopped {
		return false
	}
	_, revision := b.e.ceilings.of(b.created.Project, nil, 0)
	return b.net.asked.Revision < revision || b.net.applied < b.net.asked.Generation
}

// takeCeiling puts the sandbox under its project's ceiling as it is now. An ended one has no use for it.
func (b *box) takeCeiling(ctx context.Context) (changed bool, err error) {
	err = b.changeNetwork(ctx, func(now *record.NetworkAsked) (*record.NetworkAsked, error) {
		ceiling, revision := b.e.ceilings.of(b.created.Project, now.Ceiling.GetPolicy(), now.Revision)
		if proto.Equal(ceiling, now.Ceiling) {
			return nil, nil
		}
		next := proto.CloneOf(now)
		next.Ceiling, next.Revision = ceiling, revision
		changed = true
		return next, nil
	})
	if errors.Is(err, sandbox.ErrFailedPrecondition) || errors.Is(err, sandbox.ErrNotFound) {
		return false, nil
	}
	return changed, err
}
