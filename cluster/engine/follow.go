package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// askEvery is how often the engine is asked for a sign of life.
	askEvery = time.Second
	// silence is how long a watch may say nothing before it is made anew.
	silence = 5 * time.Second
	// CallTimeout bounds one question to the engine that somebody waits for.
	CallTimeout = 3 * time.Second
	followPause = 200 * time.Millisecond
)

// Follower is told about all keys under a prefix, one call at a time.
type Follower interface {
	// Load gets everything, as of r's revision: at the start, and whenever something may have been missed.
	Load(r *clientv3.GetResponse)
	// Apply gets what changed, in order, within a second. Without events it only says that nothing did.
	Apply(events []*clientv3.Event)
}

// Follow tells f about the keys under prefix until ctx is done, whatever becomes of the engine meanwhile.
func Follow(ctx context.Context, c *clientv3.Client, prefix string, f Follower, log *slog.Logger) {
	for ctx.Err() == nil {
		if err := follow(ctx, c, prefix, f); err != nil && ctx.Err() == nil {
			log.Warn("the engine is not being followed", "prefix", prefix, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(followPause):
		}
	}
}

// follow loads and then applies changes until the watch breaks or falls silent.
func follow(ctx context.Context, c *clientv3.Client, prefix string, f Follower) error {
	// Without a leader (or with the process stopped) the stream must break, not hang.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	rev, err := load(ctx, c, prefix, f)
	if err != nil {
		return err
	}
	// From the revision that was loaded, not the next: an engine gives no sign of life to a watch that waits for a
	// revision of the future, and an idle one may stay at this one for days.
	events := c.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(rev))

	var asker sync.WaitGroup
	defer asker.Wait()
	defer cancel()
	asker.Go(func() { ask(ctx, c) })

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
			f.Apply(after(rev, resp.Events))
			quiet.Reset(silence)
		case <-quiet.C:
			return context.DeadlineExceeded
		}
	}
}

// after leaves out the events that were loaded already.
func after(rev int64, events []*clientv3.Event) []*clientv3.Event {
	for len(events) > 0 && events[0].Kv.ModRevision <= rev {
		events = events[1:]
	}
	return events
}

func load(ctx context.Context, c *clientv3.Client, prefix string, f Follower) (revision int64, err error) {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	resp, err := c.Get(call, prefix, clientv3.WithPrefix())
	if err != nil {
		return 0, err
	}
	f.Load(resp)
	return resp.Header.Revision, nil
}

// ask requests progress notices: they come through the watch's own stream, and so prove that it lives.
func ask(ctx context.Context, c *clientv3.Client) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			call, cancel := context.WithTimeout(ctx, CallTimeout)
			_ = c.RequestProgress(call) // silence is noticed by follow
			cancel()
		}
	}
}
