package edge

import (
	"context"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

// maxPast bounds the recorded events that one call over many sandboxes returns; the newest are kept.
const maxPast = 100_000

// StreamEvents implements SandboxService.
func (a *sandboxAPI) StreamEvents(ctx context.Context, req *dsecv1.StreamEventsRequest, stream *connect.ServerStream[dsecv1.StreamEventsResponse]) error {
	return wireError(a.e.streamEvents(ctx, req, func(ev *dsecv1.Event) error {
		if ev == nil {
			return stream.Send(nil)
		}
		return stream.Send(&dsecv1.StreamEventsResponse{Event: ev})
	}))
}

// streamEvents sends events, and before them nil once it listens: then nothing is missed any more.
func (e *Edge) streamEvents(ctx context.Context, req *dsecv1.StreamEventsRequest, send func(*dsecv1.Event) error) error {
	var one *box
	if req.SandboxId != "" {
		b, err := e.find(req.SandboxId)
		if err != nil {
			return err
		}
		one = b
	}
	var f *follower
	if req.Follow { // before reading the past, so that nothing falls between
		f = e.hub.follow(sandbox.ID(req.SandboxId), req.Labels)
		defer e.hub.leave(f)
		if err := send(nil); err != nil {
			return err
		}
	}
	seen, err := e.pastEvents(one, req, send)
	if err != nil || f == nil {
		return err
	}
	if one != nil && isClosed(one.gone) && seen[one.id] >= one.log.Sequence() {
		return nil // nothing follows
	}
	for {
		select {
		case ev, ok := <-f.events:
			if !ok {
				return slowFollower(one, seen)
			}
			if id := sandbox.ID(ev.SandboxId); ev.Sequence > seen[id] {
				if err := send(ev); err != nil {
					return err
				}
				seen[id] = ev.Sequence
			}
			if one != nil && ev.Type == "ended" {
				return nil // nothing comes after it
			}
			if one == nil && ev.Type == "ended" {
				delete(seen, sandbox.ID(ev.SandboxId))
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-e.closing:
			return errClosing
		}
	}
}

func slowFollower(one *box, seen map[sandbox.ID]int64) error {
	hint := "list again and follow anew"
	if one != nil {
		hint = fmt.Sprintf("follow again with after_sequence %d", seen[one.id])
	}
	return fmt.Errorf("events: %w: more than %d were waiting to be read; %s", sandbox.ErrExhausted, maxBehind, hint)
}

// pastEvents sends what is recorded, and returns the last sequence of each sandbox.
func (e *Edge) pastEvents(one *box, req *dsecv1.StreamEventsRequest, send func(*dsecv1.Event) error) (map[sandbox.ID]int64, error) {
	seen := map[sandbox.ID]int64{}
	if one != nil {
		seen[one.id] = req.AfterSequence
		var failed error
		err := one.log.Entries(req.AfterSequence, func(entry *record.Entry) bool {
			seen[one.id] = entry.Sequence
			if ev := eventOf(one.id, entry); ev != nil {
				failed = send(ev)
			}
			return failed == nil
		})
		if failed != nil {
			err = failed
		}
		return seen, err
	}
	var past []*dsecv1.Event
	for _, b := range e.all() {
		if !hasLabels(b.created.Spec, req.Labels) {
			continue
		}
		err := b.log.Entries(0, func(entry *record.Entry) bool {
			seen[b.id] = entry.Sequence
			if ev := eventOf(b.id, entry); ev != nil {
				past = append(past, ev)
			}
			return true
		})
		if err != nil {
			e.log.Warn("read events", "sandbox", b.id, "err", err) // it may just have been forgotten
		}
		if len(past) > 2*maxPast {
			past = newest(past)
		}
	}
	for _, ev := range newest(past) {
		if err := send(ev); err != nil {
			return nil, err
		}
	}
	return seen, nil
}

// newest sorts events by time and keeps the last.
func newest(list []*dsecv1.Event) []*dsecv1.Event {
	slices.SortStableFunc(list, func(a, b *dsecv1.Event) int { return a.At.AsTime().Compare(b.At.AsTime()) })
	return list[max(0, len(list)-maxPast):]
}
