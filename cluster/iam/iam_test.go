package iam_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opendsec/dsec/cluster/engine"
	"github.com/opendsec/dsec/cluster/iam"
	"github.com/opendsec/dsec/sandbox"
)

var quiet = slog.New(slog.DiscardHandler)

// rig is one real engine and the means to stop and start it.
type rig struct {
	t *testing.T
	o engine.Options
	e *engine.Engine
}

func newRig(t *testing.T) *rig {
	dir := t.TempDir()
	r := &rig{t: t, o: engine.Options{Dir: filepath.Join(dir, "d"), Socket: filepath.Join(dir, "e.sock"), Log: quiet}}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *rig) start() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, err := engine.Start(ctx, r.o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.e = e
}

func (r *rig) stop() {
	if r.e != nil {
		r.e.Close()
		r.e = nil
	}
}

// store runs a Store until the test ends.
func (r *rig) store(o iam.Options) *iam.Store {
	c, err := engine.Dial("unix://" + r.o.Socket)
	if err != nil {
		r.t.Fatal(err)
	}
	o.Log = quiet
	s := iam.New(c, o)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	r.t.Cleanup(func() { cancel(); wg.Wait(); c.Close() })
	return s
}

func ctxT(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestKeysOfBothShapes(t *testing.T) {
	s := newRig(t).store(iam.Options{})
	ctx := ctxT(t)
	for _, c := range []struct {
		format iam.Format
		shape  string
	}{{"", `^dsec_[a-z2-7]{8}_[a-z2-7]{32}$`}, {iam.FormatE2B, `^e2b_[0-9a-f]+$`}} {
		k, secret, err := s.Create(ctx, "ci", c.format)
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(c.shape).MatchString(secret) || !strings.Contains(secret, k.ID) {
			t.Errorf("key %q, id %q", secret, k.ID)
		}
		if strings.Contains(k.Hash, secret[len(secret)-20:]) {
			t.Error("the hash holds the secret")
		}
		got, err := s.Authenticate(ctx, secret)
		if err != nil || got.ID != k.ID || got.Name != "ci" {
			t.Errorf("authenticate: %+v, %v", got, err)
		}
		last := "b"
		if strings.HasSuffix(secret, "b") {
			last = "c"
		}
		if _, err := s.Authenticate(ctx, secret[:len(secret)-1]+last); !errors.Is(err, sandbox.ErrUnauthenticated) {
			t.Errorf("a wrong secret: %v", err)
		}
		if !iam.ContainsKey("Bearer " + secret) {
			t.Errorf("ContainsKey does not see %q", secret)
		}
	}
	keys, err := s.List(ctx)
	if err != nil || len(keys) != 2 {
		t.Fatalf("list: %v, %v", keys, err)
	}
}

func TestRefused(t *testing.T) {
	s := newRig(t).store(iam.Options{})
	ctx := ctxT(t)
	for _, presented := range []string{"", "x", "dsec_", "dsec_aaaaaaaa_" + strings.Repeat("a", 32), "e2b_" + strings.Repeat("0", 50), strings.Repeat("dsec_", 10000)} {
		if _, err := s.Authenticate(ctx, presented); !errors.Is(err, sandbox.ErrUnauthenticated) || !strings.Contains(err.Error(), "dsec key create") {
			t.Errorf("%.20q: %v", presented, err)
		}
	}
	if _, _, err := s.Create(ctx, "a\nb", ""); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("name with a line break: %v", err)
	}
	if _, _, err := s.Create(ctx, "a", "pem"); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("unknown format: %v", err)
	}
	if _, err := s.Revoke(ctx, "nokey"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("revoke of an unknown key: %v", err)
	}
}

// TestRevocationReachesOthers revokes at one API server and waits until another, which has the key in memory,
// refuses it.
func TestRevocationReachesOthers(t *testing.T) {
	r := newRig(t)
	a, b := r.store(iam.Options{}), r.store(iam.Options{})
	ctx := ctxT(t)
	k, secret, err := a.Create(ctx, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Authenticate(ctx, secret); err != nil {
		t.Fatalf("at the other server, at once: %v", err)
	}
	first, err := a.Revoke(ctx, k.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Authenticate(ctx, secret); !errors.Is(err, sandbox.ErrUnauthenticated) {
		t.Fatalf("at the same server: %v", err)
	}
	revoked := time.Now()
	for ctx.Err() == nil {
		if _, err = b.Authenticate(ctx, secret); err != nil {
			break
		}
	}
	if !errors.Is(err, sandbox.ErrUnauthenticated) || !strings.Contains(err.Error(), "was revoked at") {
		t.Fatalf("at the other server: %v", err)
	}
	t.Logf("reached the other server after %s", time.Since(revoked))
	if again, err := b.Revoke(ctx, k.ID); err != nil || !again.RevokedAt.Equal(first.RevokedAt) {
		t.Fatalf("revoke again: %+v, %v", again, err)
	}
}

func TestEngineAway(t *testing.T) {
	r := newRig(t)
	var ahead atomic.Int64
	s := r.store(iam.Options{Grace: time.Hour, Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	ctx := ctxT(t)
	_, secret, err := s.Create(ctx, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(ctx, secret); err != nil {
		t.Fatal(err)
	}
	r.stop()
	if _, err := s.Authenticate(ctx, secret); err != nil {
		t.Fatalf("within the grace: %v", err)
	}
	if _, err := s.Authenticate(ctx, "dsec_aaaaaaaa_"+strings.Repeat("a", 32)); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Fatalf("an unknown key while nobody can tell: %v", err)
	}
	ahead.Store(int64(2 * time.Hour))
	if _, err := s.Authenticate(ctx, secret); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Fatalf("after the grace: %v", err)
	}
	if s.Ready() {
		t.Fatal("ready after the grace")
	}
	r.start()
	for ctx.Err() == nil && !s.Ready() {
		time.Sleep(10 * time.Millisecond) // poll, until the deadline
	}
	if _, err := s.Authenticate(ctx, secret); err != nil {
		t.Fatalf("after the engine's return: %v", err)
	}
	ahead.Store(0)
}

func TestPortTokens(t *testing.T) {
	r := newRig(t)
	var ahead atomic.Int64
	a := r.store(iam.Options{})
	b := r.store(iam.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	ctx := ctxT(t)
	id, other := sandbox.NewID("edge"), sandbox.NewID("edge")
	token, err := a.PortToken(ctx, id, 8000, time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.CheckPortToken(ctx, token, id, 8000); err != nil {
		t.Errorf("at another server: %v", err)
	}
	for name, err := range map[string]error{
		"other port":    second(b.CheckPortToken(ctx, token, id, 8001)),
		"other sandbox": second(b.CheckPortToken(ctx, token, other, 8000)),
		"empty":         second(b.CheckPortToken(ctx, "", id, 8000)),
		"changed":       second(b.CheckPortToken(ctx, "b"+token[1:], id, 8000)),
	} {
		if !errors.Is(err, sandbox.ErrUnauthenticated) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ahead.Store(int64(2 * time.Hour))
	if _, err := b.CheckPortToken(ctx, token, id, 8000); !errors.Is(err, sandbox.ErrUnauthenticated) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("expired: %v", err)
	}
}

func second(_ time.Time, err error) error { return err }
