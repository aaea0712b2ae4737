package iam

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/opendsec/dsec/cluster/engine"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Run keeps the copy in memory fresh until ctx is done.
func (s *Store) Run(ctx context.Context) { engine.Follow(ctx, s.etcd, keyPrefix, follower{s}, s.o.Log) }

// follower implements engine.Follower.
type follower struct{ *Store }

func (s follower) Load(r *clientv3.GetResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, k := range s.keys { // what was deleted meanwhile goes; what is newer than the answer stays
		if k.rev <= r.Header.Revision {
			delete(s.keys, id)
		}
	}
	for _, kv := range r.Kvs {
		var k Key
		if err := json.Unmarshal(kv.Value, &k); err != nil {
			s.o.Log.Error("key is not readable", "path", string(kv.Key), "err", err)
			continue
		}
		s.put(k, kv.ModRevision)
	}
	s.contact = s.o.Now()
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
}

func (s follower) Apply(events []*clientv3.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contact = s.o.Now()
	for _, e := range events {
		id := strings.TrimPrefix(string(e.Kv.Key), keyPrefix)
		if e.Type == clientv3.EventTypeDelete {
			delete(s.keys, id)
			continue
		}
		var k Key
		if err := json.Unmarshal(e.Kv.Value, &k); err != nil {
			s.o.Log.Error("key is not readable", "path", string(e.Kv.Key), "err", err)
			delete(s.keys, id) // what cannot be read admits nobody
			continue
		}
		s.put(k, e.Kv.ModRevision)
	}
}
