package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

const (
	stepPrefix = "step/"
	// StepAge is for how long a step that nobody asks for is kept.
	StepAge = 7 * 24 * time.Hour
	// stepTouch is how exactly it is known when a step was asked for last.
	stepTouch = time.Hour
)

// step is what a step of a build made.
type step struct {
	Used  time.Time       `json:"used"`
	Layer json.RawMessage `json:"layer"`
}

func (s *step) layer() (*dsecv1.Layer, error) {
	l := &dsecv1.Layer{}
	err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(s.Layer, l)
	return l, err
}

func decodeStep(e Entry) (*step, error) {
	s := &step{}
	if err := json.Unmarshal(e.Value, s); err != nil {
		return nil, fmt.Errorf("catalogue entry %s: %w: %w", e.Key, sandbox.ErrUnavailable, err)
	}
	return s, nil
}

func checkStepKey(key string) error {
	if key == "" || len(key) > 128 || strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return fmt.Errorf("build step %.150q: %w: its key must have 1 to 128 lower-case letters and digits", key, sandbox.ErrInvalid)
	}
	return nil
}

// PutStep keeps what a step made. Errors: sandbox.ErrInvalid, ErrUnavailable.
func (c *Catalogue) PutStep(ctx context.Context, key string, l *dsecv1.Layer) error {
	if err := checkStepKey(key); err != nil {
		return err
	}
	if _, err := layer.ParseDigest(l.GetDigest()); err != nil {
		return err
	}
	raw, err := protojson.Marshal(l)
	if err != nil {
		return err
	}
	return change(ctx, c.kv, stepPrefix+key, func(old Entry) ([]byte, bool, error) {
		if old.Revision != 0 { // what the other one made may lose its last reference
			if s, err := decodeStep(old); err == nil {
				if was, err := s.layer(); err == nil && was.Digest != l.Digest {
					if err := c.bury(ctx, []*dsecv1.Layer{was}); err != nil {
						return nil, false, err
					}
				}
			}
		}
		b, err := json.Marshal(step{Used: c.now(), Layer: raw})
		return b, false, err
	})
}

// Step returns what a step made. Error: sandbox.ErrNotFound.
func (c *Catalogue) Step(ctx context.Context, key string) (*dsecv1.Layer, error) {
	if err := checkStepKey(key); err != nil {
		return nil, err
	}
	var found *dsecv1.Layer
	err := change(ctx, c.kv, stepPrefix+key, func(e Entry) ([]byte, bool, error) {
		if e.Revision == 0 {
			return nil, false, fmt.Errorf("build step %s: %w", key, sandbox.ErrNotFound)
		}
		s, err := decodeStep(e)
		if err != nil {
			return nil, false, err
		}
		if found, err = s.layer(); err != nil {
			return nil, false, fmt.Errorf("catalogue entry %s: %w: %w", e.Key, sandbox.ErrUnavailable, err)
		}
		now := c.now()
		if now.Sub(s.Used) < stepTouch {
			return nil, true, nil
		}
		s.Used = now
		b, err := json.Marshal(s)
		return b, false, err
	})
	return found, err
}

// ForgetSteps forgets steps that were not asked for for so long, and returns how many.
func (c *Catalogue) ForgetSteps(ctx context.Context, age time.Duration) (int, error) {
	return c.forget(ctx, func(s *step, _ *dsecv1.Layer) bool { return c.now().Sub(s.Used) >= age })
}

// ForgetStepsOf forgets the steps that made a layer, so that the next build makes it anew, and returns how many.
func (c *Catalogue) ForgetStepsOf(ctx context.Context, digest string) (int, error) {
	return c.forget(ctx, func(_ *step, l *dsecv1.Layer) bool { return l.GetDigest() == digest })
}

// forget forgets the steps that which tells, and those that cannot be read.
func (c *Catalogue) forget(ctx context.Context, which func(*step, *dsecv1.Layer) bool) (int, error) {
	entries, err := c.kv.List(ctx, stepPrefix)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, e := range entries {
		s, err := decodeStep(e)
		var l *dsecv1.Layer
		if err == nil {
			l, err = s.layer()
		}
		if err == nil {
			if !which(s, l) {
				continue
			}
			if err := c.bury(ctx, []*dsecv1.Layer{l}); err != nil {
				return n, err
			}
		}
		switch err := c.kv.Delete(ctx, e.Key, e.Revision); {
		case errors.Is(err, sandbox.ErrConflict): // asked for at this moment
		case err != nil:
			return n, err
		default:
			n++
		}
	}
	return n, nil
}

// steps returns what all steps made.
func (c *Catalogue) steps(ctx context.Context) ([]*dsecv1.Layer, error) {
	entries, err := c.kv.List(ctx, stepPrefix)
	if err != nil {
		return nil, err
	}
	var out []*dsecv1.Layer
	for _, e := range entries {
		s, err := decodeStep(e)
		if err != nil {
			return nil, err
		}
		l, err := s.layer()
		if err != nil {
			return nil, fmt.Errorf("catalogue entry %s: %w: %w", e.Key, sandbox.ErrUnavailable, err)
		}
		out = append(out, l)
	}
	return out, nil
}

// known tells whether something in the catalogue refers to a layer: a version of a name, alone or as one of its stack, or a
// step of a build. Error: sandbox.ErrNotFound.
func (c *Catalogue) known(ctx context.Context, digest string) error {
	if _, err := layer.ParseDigest(digest); err != nil {
		return err
	}
	var keys []string
	for _, k := range kinds {
		keys = append(keys, digestKey(k, digest))
	}
	entries, err := c.kv.Get(ctx, keys...)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(entries, func(e Entry) bool { return e.Revision != 0 }) {
		return nil
	}
	named, err := c.Named(ctx)
	if err != nil {
		return err
	}
	if !named[digest] {
		return fmt.Errorf("layer %s: %w in the catalogue", digest, sandbox.ErrNotFound)
	}
	return nil
}
