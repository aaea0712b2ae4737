package edge

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

// maxSnapshots bounds the snapshots of a node, those for forks included.
const maxSnapshots = 10_000

// snapshots are what is kept of sandboxes' disks. Each has a record in a file of its own, written before anything is
// made; one that is neither kept nor needed by a sandbox is removed.
type snapshots struct {
	e   *Edge
	dir string

	mu sync.Mutex
	m  map[sandbox.SnapshotID]*snapshot
}

// snapshot is one of them; guarded by snapshots.mu, but for what never changes once it is ready.
type snapshot struct {
	id      sandbox.SnapshotID
	rec     *record.Snapshot
	backend sandbox.Snapshotter
	// users counts live sandboxes made of it, directly or not, and requests at work on it.
	users    int
	children int // the former
}

func newSnapshots(e *Edge) *snapshots {
	return &snapshots{e: e, dir: filepath.Join(e.cfg.StateDir, "snapshots"), m: map[sandbox.SnapshotID]*snapshot{}}
}

// snapshotter returns a backend's ability. Error: ErrUnsupported.
func snapshotter(b sandbox.Backend) (sandbox.Snapshotter, error) {
	if s, ok := b.(sandbox.Snapshotter); ok && b.Capabilities().Snapshot {
		return s, nil
	}
	return nil, fmt.Errorf("disks of %s sandboxes cannot be kept: %w", b.Name(), sandbox.ErrUnsupported)
}

// load reads the records. Call it before any sandbox is taken up.
func (s *snapshots) load() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, d := range entries {
		id, err := sandbox.ParseSnapshotID(d.Name())
		if err != nil { // a file that was being written
			if err := os.Remove(filepath.Join(s.dir, d.Name())); err != nil {
				return err
			}
			continue
		}
		b, err := os.ReadFile(filepath.Join(s.dir, d.Name()))
		if err != nil {
			return err
		}
		rec := &record.Snapshot{}
		if err := proto.Unmarshal(b, rec); err != nil {
			s.e.log.Error("the record of a snapshot is damaged; it is left alone", "snapshot", id, "err", err)
			rec = nil
		}
		sn := &snapshot{id: id, rec: rec}
		if rec != nil {
			if backend := s.e.backends[backendNames[rec.GetCreated().GetSpec().GetBackend()]]; backend != nil {
				sn.backend, _ = snapshotter(backend)
			}
		}
		s.m[id] = sn
	}
	return nil
}

// settle removes what nothing needs, once all sandboxes are taken up: snapshots that were being made, those of forks
// whose children are gone, and what the backends have without a record.
func (s *snapshots) settle() {
	for _, b := range s.e.backends {
		sn, err := snapshotter(b)
		if err != nil {
			continue
		}
		there, err := sn.Snapshots()
		if err != nil { // unknown is not empty
			s.e.log.Error("list snapshots", "backend", b.Name(), "err", err)
			continue
		}
		for _, id := range there {
			s.mu.Lock()
			known := s.m[id] != nil
			s.mu.Unlock()
			if known {
				continue
			}
			if err := sn.DeleteSnapshot(id); err != nil {
				s.e.log.Error("remove a snapshot without a record", "snapshot", id, "err", err)
			}
		}
		s.forgetLost(sn, there)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.m {
		s.collect(x)
	}
}

// forgetLost drops the records of snapshots that their backend has no more: of a pool that was made anew.
func (s *snapshots) forgetLost(backend sandbox.Snapshotter, there []sandbox.SnapshotID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, x := range s.m {
		if x.backend != backend || slices.Contains(there, id) {
			continue
		}
		if x.rec.GetReady() {
			s.e.log.Error("a snapshot is lost: the pool does not have it", "snapshot", id)
		}
		delete(s.m, id)
		_ = os.Remove(filepath.Join(s.dir, string(id)))
	}
}

// collect removes a snapshot that nothing needs. s.mu is held.
func (s *snapshots) collect(x *snapshot) {
	switch {
	case x.rec == nil || x.backend == nil || x.users > 0:
		return
	case x.rec.Ready && x.rec.Public.Kept && !x.rec.Deleted:
		return
	case x.rec.Pack && !x.rec.Deleted && s.e.lives(x.rec.Public.SandboxId):
		return
	}
	if err := x.backend.DeleteSnapshot(x.id); err != nil {
		s.e.log.Error("remove a snapshot; the next start will", "snapshot", x.id, "err", err)
		return
	}
	if err := os.Remove(filepath.Join(s.dir, string(x.id))); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.e.log.Error("remove the record of a snapshot; the next start will", "snapshot", x.id, "err", err)
	}
	delete(s.m, x.id)
}

// lives tells whether a sandbox has not ended.
func (e *Edge) lives(id string) bool {
	b, err := e.find(id)
	return err == nil && !b.ending()
}

// save writes a record.
func (s *snapshots) save(x *snapshot) error {
	b, err := proto.Marshal(x.rec)
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, string(x.id))
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return notRecorded(fmt.Sprintf("record of snapshot %s", x.id), err)
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		_ = os.Remove(path + ".new")
		return notRecorded(fmt.Sprintf("record of snapshot %s", x.id), err)
	}
	return nil
}

// add makes room for a new one, held once, and records it.
func (s *snapshots) add(rec *record.Snapshot, backend sandbox.Snapshotter) (*snapshot, error) {
	x := &snapshot{id: sandbox.NewSnapshotID(s.e.cfg.ID), rec: rec, backend: backend, users: 1}
	rec.Public.Id = string(x.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.m) >= maxSnapshots {
		return nil, fmt.Errorf("snapshot: %w: this node keeps %d already; delete some", sandbox.ErrExhausted, len(s.m))
	}
	if err := s.save(x); err != nil {
		return nil, err
	}
	s.m[x.id] = x
	return x, nil
}

// find returns a snapshot that is ready, held until release. Errors: ErrInvalid, ErrNotFound.
func (s *snapshots) find(id string) (*snapshot, error) {
	parsed, err := sandbox.ParseSnapshotID(id)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.m[parsed]
	if x == nil || x.rec == nil || !x.rec.Ready || x.rec.Deleted {
		return nil, fmt.Errorf("snapshot %s: %w on edge %s; dsec snapshot ls names those there are", id, sandbox.ErrNotFound, s.e.cfg.ID)
	}
	if x.backend == nil {
		return nil, fmt.Errorf("snapshot %s: its backend is not configured: %w", id, sandbox.ErrUnsupported)
	}
	x.users++
	return x, nil
}

func (s *snapshots) release(x *snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.users--
	s.collect(x)
}

// use counts a sandbox that is made of these snapshots, until unuse.
func (s *snapshots) use(ids []string) { s.count(ids, 1) }

func (s *snapshots) unuse(ids []string) { s.count(ids, -1) }

func (s *snapshots) count(ids []string, n int) {
	if len(ids) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if x := s.m[sandbox.SnapshotID(id)]; x != nil {
			x.users += n
			x.children += n
			s.collect(x)
		}
	}
}

// ended lets go of what is kept for a sandbox's next pack.
func (s *snapshots) ended(id sandbox.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.m {
		if x.rec.GetPack() && x.rec.Public.SandboxId == string(id) {
			x.rec.Deleted = true
			s.collect(x)
		}
	}
}

// list returns snapshots, newest first.
func (s *snapshots) list(req *dsecv1.ListSnapshotsRequest) []*dsecv1.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*dsecv1.Snapshot
	for _, x := range s.m {
		if x.rec == nil || !x.rec.Ready || x.rec.Deleted && !req.All || !x.rec.Public.Kept && !req.All || req.SandboxId != "" && x.rec.Public.SandboxId != req.SandboxId {
			continue
		}
		if hasLabels(&dsecv1.SandboxSpec{Labels: x.rec.Public.Labels}, req.Labels) {
			out = append(out, s.public(x))
		}
	}
	slices.SortFunc(out, func(a, b *dsecv1.Snapshot) int {
		if c := b.CreatedAt.AsTime().Compare(a.CreatedAt.AsTime()); c != 0 {
			return c
		}
		return strings.Compare(a.Id, b.Id)
	})
	return out
}

// public is a snapshot as the API shows it. s.mu is held.
func (s *snapshots) public(x *snapshot) *dsecv1.Snapshot {
	p := proto.Clone(x.rec.Public).(*dsecv1.Snapshot)
	p.Children = int32(x.children)
	p.Kept = p.Kept && !x.rec.Deleted
	return p
}

// show is public for who does not hold s.mu.
func (s *snapshots) show(x *snapshot) *dsecv1.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.public(x)
}

// remove forgets a kept snapshot; its content stays while sandboxes are made of it.
func (s *snapshots) remove(id string) (*dsecv1.Snapshot, error) {
	x, err := s.find(id)
	if err != nil {
		return nil, err
	}
	defer s.release(x)
	s.mu.Lock()
	defer s.mu.Unlock()
	x.rec.Deleted = true
	if err := s.save(x); err != nil {
		x.rec.Deleted = false
		return nil, err
	}
	return s.public(x), nil
}
