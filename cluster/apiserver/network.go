package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

const (
	// tellEvery is how often an edge is looked at that may have been started again.
	tellEvery = time.Second
	// tellTimeout bounds a change on an edge with thousands of sandboxes.
	tellTimeout = time.Minute
)

// tellCeilings tells an edge the ceilings of projects whenever they change, and whenever it was started again, until ctx
// is done.
func (s *Server) tellCeilings(ctx context.Context, e *Edge) {
	var told, started int64 // revision, and to which process
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		c, changed, err := s.o.Network.Ceilings(ctx)
		if now := e.started.Load(); err == nil && e.Up() == nil && (told != c.Revision || started != now) {
			if err = e.tell(ctx, c, s); err == nil {
				told, started = c.Revision, now
			}
		}
		if err != nil && ctx.Err() == nil {
			s.o.Log.Warn("an edge does not know the ceilings of projects yet", "edge", e.name(), "err", err)
		}
		select {
		case <-ctx.Done():
		case <-changed: // nil where they could not be read
		case <-tick.C:
		}
	}
}

func (e *Edge) tell(ctx context.Context, c *dsecv1.SetCeilingsRequest, s *Server) error {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	resp, err := e.Admin.SetCeilings(ctx, c)
	if err != nil {
		return err
	}
	for _, text := range resp.GetErrors() {
		s.o.Log.Error("a project's ceiling", "edge", e.name(), "err", text)
	}
	return nil
}

// networkDefaults implements NetworkDefaultService.
type networkDefaults struct{ s *Server }

func (n networkDefaults) SetNetworkDefault(ctx context.Context, r *dsecv1.SetNetworkDefaultRequest) (*dsecv1.SetNetworkDefaultResponse, error) {
	target, policy := r.GetDefault().GetTarget(), r.GetDefault().GetPolicy()
	resp := &dsecv1.SetNetworkDefaultResponse{}
	if policy != nil && (len(policy.GetRules()) > 0 || policy.GetLimits() != nil) {
		if err := n.exists(ctx, target); err != nil {
			return nil, connectError(err)
		}
		edges := n.s.edges.All()
		if len(edges) == 0 {
			return nil, connectError(fmt.Errorf("check network policy: %w: no edge is known", sandbox.ErrUnavailable))
		}
		checked, err := edges[0].Admin.CheckNetwork(ctx, &dsecv1.CheckNetworkRequest{Policy: policy})
		if err != nil {
			return nil, connectError(edges[0].answered(ctx, err))
		}
		resp.Warnings = checked.GetWarnings()
	}
	if err := n.s.o.Network.SetDefault(ctx, target, policy); err != nil {
		return nil, connectError(err)
	}
	n.s.o.Log.Info("network default", "target", target, "rules", len(policy.GetRules()), "by", keyOf(ctx).ID)
	return resp, nil
}

// forgetting takes away the defaults of names that a deletion takes out of the catalogue: whoever gives such a name to
// something else does not mean them. remove deletes and returns the versions that are gone; what it does not find is
// forgotten too, so that a deletion that was cut off can be done again.
func (s *Server) forgetting(ctx context.Context, kind dsecv1.LayerKind, name, version string, remove func() ([]*dsecv1.Layer, error)) ([]*dsecv1.Layer, error) {
	if s.o.Network == nil {
		return remove()
	}
	revision, err := s.o.Network.Revision(ctx)
	if err != nil {
		return nil, err
	}
	gone, err := remove()
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		return nil, err
	}
	word := strings.ToLower(strings.TrimPrefix(kind.String(), "LAYER_KIND_")) + "/"
	var targets []string
	for _, l := range gone {
		targets = append(targets, word+l.GetName()+"@"+l.GetVersion())
	}
	if err != nil && version != "" {
		targets = append(targets, word+name+"@"+version)
	}
	left, lerr := s.o.Catalogue.List(ctx, kind, name)
	if lerr == nil && !slices.ContainsFunc(left, func(l *dsecv1.Layer) bool { return l.GetName() == name }) {
		targets = append(targets, word+name)
	}
	ferr := s.o.Network.Forget(context.WithoutCancel(ctx), revision, targets...)
	if ferr = errors.Join(lerr, ferr); ferr != nil {
		// Gone is gone; that the default is left is told, and the same deletion again takes it away.
		s.o.Log.Error("the network default of what was deleted is left", "of", targets, "err", ferr)
		if err == nil {
			err = fmt.Errorf("%s%s is deleted, but its network default may be left: %w; delete it again", word, name, ferr)
		}
	}
	return gone, err
}

// exists says whether a target is in the catalogue. Errors: ErrInvalid, ErrNotFound.
func (n networkDefaults) exists(ctx context.Context, target string) error {
	word, name, ok := strings.Cut(target, "/")
	if word == "environment" && name != "" {
		_, err := n.s.o.Catalogue.Environment(ctx, name)
		return err
	}
	kind := dsecv1.LayerKind(dsecv1.LayerKind_value["LAYER_KIND_"+strings.ToUpper(word)])
	if !ok || name == "" || kind == 0 || word != strings.ToLower(word) {
		return fmt.Errorf("network default of %.150q: %w: want base/NAME, workspace/NAME or toolkit/NAME, with @VERSION where only one is meant, or environment/NAME", target, sandbox.ErrInvalid)
	}
	name, version, _ := strings.Cut(name, "@")
	layers, err := n.s.o.Catalogue.List(ctx, kind, name)
	if err != nil {
		return err
	}
	for _, l := range layers {
		if l.GetName() == name && (version == "" || l.GetVersion() == version) {
			return nil
		}
	}
	return fmt.Errorf("network default of %.150s: %w: the catalogue has no such %s (`dsec layer ls` shows what there is)", target, sandbox.ErrNotFound, word)
}

func (n networkDefaults) ListNetworkDefaults(ctx context.Context, _ *dsecv1.ListNetworkDefaultsRequest) (*dsecv1.ListNetworkDefaultsResponse, error) {
	list, err := n.s.o.Network.Defaults(ctx)
	if err != nil {
		return nil, connectError(err)
	}
	return &dsecv1.ListNetworkDefaultsResponse{Defaults: list}, nil
}
