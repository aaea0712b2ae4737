package iam

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// askEvery is how often the engine is asked for a sign of life.
	askEvery = time.Second
	// silence is how long a watch may say nothing before it is made anew.
	silence     = 5 * time.Second
	callTimeout = 3 * time.Second
)

// Run keeps the copy in memory fresh until ctx is done.
func (s *Store) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.follow(ctx); err != nil && ctx.Err() == nil {
			s.o.Log.Warn("keys are not being followed", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// follow reads all keys and then applies changes until the watch breaks or falls silent.
func (s *Store) follow(ctx context.Context) error {
	// Without a leader (or with the process stopped) the stream must break, not hang.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	rev, err := s.load(ctx)
	if err != nil {
		return err
	}
	events := s.etcd.Watch(ctx, keyPrefix, clientv3.WithPrefix(), clientv3.WithRev(rev+1))

	var asker sync.WaitGroup
	defer asker.Wait()
	defer cancel()
	asker.Go(func() { s.ask(ctx) })

	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	for {
		select {
		case resp, ok := <-events:
			if !ok {
				return ctx.Err()
			}
			if err := resp.Err(); err != nil {
				return err
			}
			s.apply(resp.Events)
			quiet.Reset(silence)
		case <-quiet.C:
			return context.DeadlineExceeded
		}
	}
}

// ask requests progress notices: they come through the watch's own stream, and so prove that it lives.
func (s *Store) ask(ctx context.Context) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			call, cancel := context.WithTimeout(ctx, callTimeout)
			_ = s.etcd.RequestProgress(call) // silence is noticed by follow
			cancel()
		}
	}
}

func (s *Store) load(ctx context.Context) (revision int64, err error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := s.etcd.Get(call, keyPrefix, clientv3.WithPrefix())
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	for id, k := range s.keys { // what was deleted meanwhile goes; what is newer than the answer stays
		if k.rev <= resp.Header.Revision {
			delete(s.keys, id)
		}
	}
	for _, kv := range resp.Kvs {
		var k Key
		if err := json.Unmarshal(kv.Value, &k); err != nil {
			s.o.Log.Error("key is not readable", "path", string(kv.Key), "err", err)
			continue
		}
		s.put(k, kv.ModRevision)
	}
	s.contact = s.o.Now()
	s.mu.Unlock()
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
	return resp.Header.Revision, nil
}

func (s *Store) apply(events []*clientv3.Event) {
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
