package netrules

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/cluster/engine"
	"github.com/opendsec/dsec/sandbox"
)

const (
	prefix   = "/dsec/network/"
	projects = prefix + "projects/"
	defaults = prefix + "defaults/"
	// maxPolicy is how large a policy may be, in bytes of JSON: the engine's own bound is near.
	maxPolicy = 1 << 20
)

// Store reads policies from memory, which Run keeps fresh, and writes them to the engine. Methods are safe for concurrent
// use.
type Store struct {
	etcd  *clientv3.Client
	log   *slog.Logger
	ready chan struct{} // closed once the first copy is complete

	mu       sync.RWMutex // guards all below
	revision int64        // of the engine
	policies map[string]*dsecv1.NetworkPolicy
	changed  chan struct{} // closed by the next change
}

// New makes a Store; it knows nothing until Run runs.
func New(etcd *clientv3.Client, log *slog.Logger) *Store {
	return &Store{etcd: etcd, log: log, ready: make(chan struct{}), policies: map[string]*dsecv1.NetworkPolicy{}, changed: make(chan struct{})}
}

// Run keeps the copy in memory fresh until ctx is done.
func (s *Store) Run(ctx context.Context) { engine.Follow(ctx, s.etcd, prefix, follower{s}, s.log) }

// Ceilings are those of all projects, as of a revision; changed is closed when there are others. Error: ErrUnavailable
// while nothing has been heard from the engine yet.
func (s *Store) Ceilings(ctx context.Context) (c *dsecv1.SetCeilingsRequest, changed <-chan struct{}, err error) {
	if err := s.wait(ctx); err != nil {
		return nil, nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return ceilings(s.policies, s.revision), s.changed, nil
}

func ceilings(policies map[string]*dsecv1.NetworkPolicy, revision int64) *dsecv1.SetCeilingsRequest {
	c := &dsecv1.SetCeilingsRequest{Revision: revision, Projects: map[string]*dsecv1.NetworkPolicy{}}
	for k, p := range policies {
		if name, ok := strings.CutPrefix(k, projects); ok {
			c.Projects[name] = p
		}
	}
	return c
}

// Of are the policies that a sandbox of a project is under that is made of the named environment, if any, and the layers:
// its ceiling, nil without one, as of a revision, and the defaults. Error: ErrUnavailable.
func (s *Store) Of(ctx context.Context, project, environment string, layers []*dsecv1.ResolvedLayer) (ceiling *dsecv1.NetworkPolicy, revision int64, of []*dsecv1.NetworkLayer, err error) {
	if err := s.wait(ctx); err != nil {
		return nil, 0, nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if p := s.policies[defaults+"environment/"+environment]; p != nil && environment != "" {
		of = append(of, &dsecv1.NetworkLayer{Source: "environment " + environment, Policy: p})
	}
	for _, l := range layers {
		name := l.GetKind() + "/" + l.GetName()
		for _, target := range []string{name + "@" + l.GetVersion(), name} {
			if p := s.policies[defaults+target]; p != nil {
				of = append(of, &dsecv1.NetworkLayer{Source: "environment " + target, Policy: p})
				break // a version's own stands in place of its name's
			}
		}
	}
	return s.policies[projects+project], s.revision, of, nil
}

func (s *Store) wait(ctx context.Context) error {
	select {
	case <-s.ready:
		return nil
	default:
	}
	t := time.NewTimer(engine.CallTimeout)
	defer t.Stop()
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("read network policies: %w: %w", sandbox.ErrUnavailable, ctx.Err())
	case <-t.C:
		return fmt.Errorf("read network policies: %w: the engine does not answer yet; try again", sandbox.ErrUnavailable)
	}
}

// ReadCeilings asks the engine for the ceilings of all projects. Error: ErrUnavailable.
func (s *Store) ReadCeilings(ctx context.Context) (*dsecv1.SetCeilingsRequest, error) {
	policies, revision, err := s.read(ctx, projects)
	if err != nil {
		return nil, err
	}
	return ceilings(policies, revision), nil
}

// SetProject replaces a project's ceiling; nil removes it. Errors: ErrInvalid, ErrUnavailable.
func (s *Store) SetProject(ctx context.Context, name string, p *dsecv1.NetworkPolicy) error {
	if !ValidProject(name) {
		return fmt.Errorf("project %.64q: %w: want 1 to 63 lower-case letters, digits and dashes, beginning with a letter or digit", name, sandbox.ErrInvalid)
	}
	return s.put(ctx, projects+name, p)
}

// Defaults are the policies beside names of the catalogue, by name. Error: ErrUnavailable.
func (s *Store) Defaults(ctx context.Context) ([]*dsecv1.NetworkDefault, error) {
	policies, _, err := s.read(ctx, defaults)
	if err != nil {
		return nil, err
	}
	var out []*dsecv1.NetworkDefault
	for _, k := range slices.Sorted(maps.Keys(policies)) {
		out = append(out, &dsecv1.NetworkDefault{Target: strings.TrimPrefix(k, defaults), Policy: policies[k]})
	}
	return out, nil
}

// SetDefault replaces the policy of KIND/NAME or KIND/NAME@VERSION; an empty one, or nil, removes it. Error: ErrUnavailable.
func (s *Store) SetDefault(ctx context.Context, target string, p *dsecv1.NetworkPolicy) error {
	return s.put(ctx, defaults+target, p)
}

// Revision is the engine's now, for Forget. Error: ErrUnavailable.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	_, revision, err := s.read(ctx, defaults+"/")
	return revision, err
}

// Forget removes the defaults of targets that have left the catalogue, unless they were set after a revision, when another may
// have come by that name. Error: ErrUnavailable.
func (s *Store) Forget(ctx context.Context, revision int64, targets ...string) error {
	ctx, cancel := context.WithTimeout(ctx, engine.CallTimeout)
	defer cancel()
	for _, target := range targets {
		key := defaults + target
		_, err := s.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "<", revision+1)).Then(clientv3.OpDelete(key)).Commit()
		if err != nil {
			return unavailable("remove", err)
		}
	}
	return nil
}

func (s *Store) put(ctx context.Context, key string, p *dsecv1.NetworkPolicy) error {
	ctx, cancel := context.WithTimeout(ctx, engine.CallTimeout)
	defer cancel()
	if proto.Size(p) == 0 {
		if _, err := s.etcd.Delete(ctx, key); err != nil {
			return unavailable("remove", err)
		}
		return nil
	}
	body, err := protojson.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode network policy: %w", err)
	}
	if len(body) > maxPolicy {
		return fmt.Errorf("network policy of %d bytes: %w: want at most %d; name a service, in a file of the node's (--opt services), for what belongs together", len(body), sandbox.ErrInvalid, maxPolicy)
	}
	if _, err := s.etcd.Put(ctx, key, string(body)); err != nil {
		return unavailable("write", err)
	}
	return nil
}

func (s *Store) read(ctx context.Context, under string) (map[string]*dsecv1.NetworkPolicy, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, engine.CallTimeout)
	defer cancel()
	resp, err := s.etcd.Get(ctx, under, clientv3.WithPrefix())
	if err != nil {
		return nil, 0, unavailable("read", err)
	}
	out := map[string]*dsecv1.NetworkPolicy{}
	for _, kv := range resp.Kvs {
		out[string(kv.Key)] = s.decode(kv.Key, kv.Value)
	}
	return out, resp.Header.Revision, nil
}

// none is what stands for a policy that cannot be read: not to be understood is not to be without.
var none = &dsecv1.NetworkPolicy{Rules: []*dsecv1.NetworkRule{{Target: "none", Allow: true}}}

func (s *Store) decode(key, value []byte) *dsecv1.NetworkPolicy {
	p := &dsecv1.NetworkPolicy{}
	if err := protojson.Unmarshal(value, p); err != nil {
		s.log.Error("a network policy is not readable, and taken for none", "path", string(key), "err", err)
		return none
	}
	return p
}

func unavailable(what string, err error) error {
	return fmt.Errorf("%s network policies: %w: the engine does not answer: %w", what, sandbox.ErrUnavailable, err)
}

// follower implements engine.Follower.
type follower struct{ *Store }

func (s follower) Load(r *clientv3.GetResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.policies)
	for _, kv := range r.Kvs {
		s.policies[string(kv.Key)] = s.decode(kv.Key, kv.Value)
	}
	s.turn(r.Header.Revision)
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
}

func (s follower) Apply(events []*clientv3.Event) {
	if len(events) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		if e.Type == clientv3.EventTypeDelete {
			delete(s.policies, string(e.Kv.Key))
		} else {
			s.policies[string(e.Kv.Key)] = s.decode(e.Kv.Key, e.Kv.Value)
		}
	}
	s.turn(events[len(events)-1].Kv.ModRevision)
}

// turn wakes those who wait for a change; mu is held.
func (s *Store) turn(revision int64) {
	s.revision = revision
	close(s.changed)
	s.changed = make(chan struct{})
}

// DefaultProject is that of keys that name none.
const DefaultProject = "default"

// ValidProject tells whether a name is one of a project.
func ValidProject(name string) bool {
	if name == "" || len(name) > 63 || name[0] == '-' {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' })
}
