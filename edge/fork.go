package edge

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// fork makes sandboxes from a running one's disk: one result per child, in order.
func (e *Edge) fork(ctx context.Context, req *dsecv1.ForkSandboxRequest, keyID string) ([]*dsecv1.CreateResult, error) {
	b, err := e.find(req.SandboxId)
	if err != nil {
		return nil, err
	}
	spec, err := b.forkSpec(req)
	if err != nil {
		return nil, err
	}
	create := &dsecv1.CreateResolvedRequest{
		Create: &dsecv1.CreateSandboxRequest{Spec: spec, Count: req.Count, IdempotencyKey: req.IdempotencyKey},
		KeyId:  keyID, Project: b.created.Project,
	}
	b.mu.Lock()
	if asked := b.net.asked; asked != nil {
		create.Ceiling, create.CeilingsRevision = asked.Ceiling.GetPolicy(), asked.Revision
	}
	b.mu.Unlock()
	count, err := checkCount(create.Create)
	if err != nil {
		return nil, err
	}
	c, end, err := e.beginCreation(ctx, keyID, req.IdempotencyKey, count, forkBody(req))
	if err != nil {
		return nil, err
	}
	defer end()
	if c.busy != nil { // whoever repeats the request gets what is made from now on
		ctx = context.WithoutCancel(ctx)
	}
	if slices.Contains(c.ids, "") {
		x, err := e.forkSnapshot(ctx, b, c)
		if err != nil {
			return nil, err
		}
		defer e.snapshots.release(x)
		spec.Environment = &dsecv1.Environment{Snapshot: string(x.id)}
	}
	return e.createAll(ctx, create, c)
}

// forkBody is what a repeated request must have in common with the first.
func forkBody(req *dsecv1.ForkSandboxRequest) proto.Message {
	body := proto.Clone(req).(*dsecv1.ForkSandboxRequest)
	body.IdempotencyKey, body.Count = "", max(1, body.Count)
	return body
}

// forkSnapshot takes the snapshot of a fork; children that lack get that of their siblings.
func (e *Edge) forkSnapshot(ctx context.Context, b *box, c *creation) (*snapshot, error) {
	for _, id := range c.ids {
		if id == "" {
			continue
		}
		sibling, err := e.find(id)
		if err != nil {
			continue
		}
		if n := len(sibling.created.Snapshots); n > 0 {
			if x, err := e.snapshots.find(sibling.created.Snapshots[n-1]); err == nil {
				return x, nil
			}
		}
		return nil, fmt.Errorf("fork of sandbox %s: %w: its snapshot is gone with the children that were made; fork anew with another key", b.id, sandbox.ErrFailedPrecondition)
	}
	return b.take(ctx, snapshotOf{})
}

// forkSpec is the original's spec with what the request changes.
func (b *box) forkSpec(req *dsecv1.ForkSandboxRequest) (*dsecv1.SandboxSpec, error) {
	s := proto.Clone(b.created.Spec).(*dsecv1.SandboxSpec)
	b.mu.Lock()
	remembered := b.secrets
	if asked := b.net.asked; asked != nil {
		s.NetworkRules, s.NetworkLimits = asked.Rules, asked.Limits
		if len(asked.Rules) == 0 && !asked.Inherits { // it was closed: its environment's defaults are not to open its fork
			s.NetworkRules = none.Rules
		}
	}
	b.mu.Unlock()
	s.Environment, s.NetworkName = nil, "" // in a private network the name is the original's
	if len(req.Labels) > 0 {
		s.Labels = req.Labels
	}
	if len(req.Env) > 0 && s.Env == nil {
		s.Env = map[string]string{}
	}
	maps.Copy(s.Env, req.Env)
	s.Secrets = maps.Clone(remembered)
	if s.Secrets == nil {
		s.Secrets = map[string]string{}
	}
	maps.Copy(s.Secrets, req.Secrets)
	for _, name := range b.created.SecretNames {
		if _, ok := s.Secrets[name]; !ok {
			return nil, fmt.Errorf("fork of sandbox %s: %w: its edge was restarted and stores no secrets: give %q again", b.id, sandbox.ErrFailedPrecondition, name)
		}
	}
	if req.TtlSeconds != nil {
		s.TtlSeconds = req.TtlSeconds
	}
	if req.IdleTimeoutSeconds != nil {
		s.IdleTimeoutSeconds = req.IdleTimeoutSeconds
	}
	if req.Limits != nil {
		s.Limits = forkLimits(s.Limits, req.Limits)
	}
	return s, nil
}

// forkLimits lays limits over the original's.
func forkLimits(was, asked *dsecv1.Limits) *dsecv1.Limits {
	out := proto.Clone(was).(*dsecv1.Limits)
	proto.Merge(out, asked) // fields that are set win
	return out
}
