package iam

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opendsec/dsec/cluster/engine"
	"github.com/opendsec/dsec/sandbox"
)

const howToGetOne = "make one with `dsec key create` on the node and pass it as DSEC_API_KEY or `Authorization: Bearer KEY`"

// Authenticate returns the key that was presented. Errors: ErrUnauthenticated; ErrUnavailable when nothing has
// been heard from the engine yet, or not for longer than the grace.
func (s *Store) Authenticate(ctx context.Context, presented string) (Key, error) {
	if presented == "" {
		return Key{}, fmt.Errorf("no API key: %w: %s", sandbox.ErrUnauthenticated, howToGetOne)
	}
	id := idOf(presented)
	if id == "" {
		return Key{}, fmt.Errorf("API key has a wrong shape: %w: want dsec_<id>_<secret>; %s", sandbox.ErrUnauthenticated, howToGetOne)
	}
	if err := s.waitReady(ctx); err != nil {
		return Key{}, err
	}
	s.mu.RLock()
	cached, known := s.keys[id]
	age := s.o.Now().Sub(s.contact)
	s.mu.RUnlock()
	if age > s.o.Grace {
		return Key{}, fmt.Errorf("check API key: %w: the engine has not answered for %s; try again", sandbox.ErrUnavailable, age.Round(time.Second))
	}
	k := cached.Key
	if !known {
		var err error
		if k, err = s.askEngine(ctx, id); err != nil {
			return Key{}, err
		}
	}
	if !k.matches(presented) {
		return Key{}, unknown(id)
	}
	if !k.RevokedAt.IsZero() {
		return Key{}, fmt.Errorf("API key %s was revoked at %s: %w: %s", id, k.RevokedAt.Format(time.RFC3339), sandbox.ErrUnauthenticated, howToGetOne)
	}
	return k, nil
}

// Verify is Authenticate without Run: it asks the engine.
func (s *Store) Verify(ctx context.Context, presented string) (Key, error) {
	id := idOf(presented)
	if id == "" {
		return Key{}, fmt.Errorf("API key has a wrong shape: %w", sandbox.ErrUnauthenticated)
	}
	k, err := s.askEngine(ctx, id)
	if err == nil && (!k.matches(presented) || !k.RevokedAt.IsZero()) {
		err = unknown(id)
	}
	return k, err
}

func unknown(id string) error {
	return fmt.Errorf("API key %s is not known: %w: %s", id, sandbox.ErrUnauthenticated, howToGetOne)
}

// askEngine looks for a key that another API server may have made a moment ago. Few may ask at once, so that
// made-up keys cannot keep the engine busy.
func (s *Store) askEngine(ctx context.Context, id string) (Key, error) {
	select {
	case s.asks <- struct{}{}:
		defer func() { <-s.asks }()
	default:
		return Key{}, fmt.Errorf("check API key %s: %w: too many unknown keys at once; try again", id, sandbox.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, engine.CallTimeout)
	defer cancel()
	k, _, err := s.get(ctx, id)
	if errors.Is(err, sandbox.ErrNotFound) {
		return Key{}, unknown(id)
	}
	return k, err // not remembered: the watch brings it, and forgets it again when it is deleted
}

func (s *Store) waitReady(ctx context.Context) error {
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
		return fmt.Errorf("check API key: %w: %w", sandbox.ErrUnavailable, ctx.Err())
	case <-t.C:
		return fmt.Errorf("check API key: %w: the engine does not answer yet; try again", sandbox.ErrUnavailable)
	}
}

// Ready tells whether keys can be checked: they were read, and the engine has answered within the grace.
func (s *Store) Ready() bool {
	select {
	case <-s.ready:
	default:
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.o.Now().Sub(s.contact) <= s.o.Grace
}
