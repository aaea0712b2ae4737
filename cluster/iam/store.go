package iam

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/opendsec/dsec/sandbox"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	keyPrefix   = "/dsec/iam/keys/"
	signingPath = "/dsec/iam/signing-key"
	maxName     = 200
)

// Options of a Store.
type Options struct {
	// Grace is how long keys in memory are good while the engine cannot be reached; 0 = 10 minutes.
	Grace time.Duration
	Now   func() time.Time // nil = time.Now
	Log   *slog.Logger
}

// Store checks keys against a copy in memory that Run keeps fresh. Methods are safe for concurrent use.
type Store struct {
	etcd  *clientv3.Client
	o     Options
	ready chan struct{} // closed once the first copy is complete
	asks  chan struct{} // bounds direct questions to the engine about unknown ids
	signs sync.Mutex    // one maker of the signing key
	sign  []byte        // guarded by signs

	mu      sync.RWMutex
	keys    map[string]seen
	contact time.Time // when the engine last said something
}

// seen is a key as of a revision of the engine.
type seen struct {
	Key
	rev int64
}

// New makes a Store; it knows nothing until Run runs.
func New(etcd *clientv3.Client, o Options) *Store {
	if o.Grace == 0 {
		o.Grace = 10 * time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Store{etcd: etcd, o: o, ready: make(chan struct{}), asks: make(chan struct{}, 16), keys: map[string]seen{}}
}

// Create makes a key of the default project; see CreateIn.
func (s *Store) Create(ctx context.Context, name string, format Format) (k Key, secret string, err error) {
	return s.CreateIn(ctx, "", name, format)
}

// CreateIn makes a key of a project. secret is the whole key; it cannot be had again. Errors: ErrInvalid, ErrUnavailable.
func (s *Store) CreateIn(ctx context.Context, project, name string, format Format) (k Key, secret string, err error) {
	if format == "" {
		format = FormatDSec
	}
	if len(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' }) {
		return Key{}, "", fmt.Errorf("key name %.40q: %w: want at most %d bytes of printable UTF-8", name, sandbox.ErrInvalid, maxName)
	}
	k, secret, err = newKey(name, format, s.o.Now())
	if err != nil {
		return Key{}, "", err
	}
	k.Project = project
	body, err := json.Marshal(k)
	if err != nil {
		return Key{}, "", fmt.Errorf("encode key: %w", err)
	}
	path := keyPrefix + k.ID
	resp, err := s.etcd.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(path), "=", 0)).
		Then(clientv3.OpPut(path, string(body))).Commit()
	if err != nil {
		return Key{}, "", unavailable("write key", err)
	}
	if !resp.Succeeded { // 40 random bits met an existing id
		return s.CreateIn(ctx, project, name, format)
	}
	s.learn(k, resp.Header.Revision)
	return k, secret, nil
}

// List returns all keys, revoked ones too, oldest first. Error: ErrUnavailable.
func (s *Store) List(ctx context.Context) ([]Key, error) {
	resp, err := s.etcd.Get(ctx, keyPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, unavailable("list keys", err)
	}
	keys := make([]Key, 0, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		var k Key
		if err := json.Unmarshal(kv.Value, &k); err != nil {
			return nil, fmt.Errorf("decode key %s: %w", kv.Key, err)
		}
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b Key) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return keys, nil
}

// Revoke ends a key's life; a revoked key stays as it is. Errors: ErrNotFound, ErrUnavailable.
func (s *Store) Revoke(ctx context.Context, id string) (Key, error) {
	for {
		k, rev, err := s.get(ctx, id)
		if err != nil {
			return Key{}, err
		}
		if !k.RevokedAt.IsZero() {
			return k, nil
		}
		k.RevokedAt = s.o.Now().UTC().Truncate(time.Millisecond)
		body, err := json.Marshal(k)
		if err != nil {
			return Key{}, fmt.Errorf("encode key: %w", err)
		}
		path := keyPrefix + id
		resp, err := s.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(path), "=", rev)).
			Then(clientv3.OpPut(path, string(body))).Commit()
		if err != nil {
			return Key{}, unavailable("write key", err)
		}
		if resp.Succeeded {
			s.learn(k, resp.Header.Revision)
			return k, nil
		}
	}
}

func (s *Store) get(ctx context.Context, id string) (Key, int64, error) {
	resp, err := s.etcd.Get(ctx, keyPrefix+id)
	if err != nil {
		return Key{}, 0, unavailable("read key", err)
	}
	if len(resp.Kvs) == 0 {
		return Key{}, 0, fmt.Errorf("key %.40q: %w: `dsec key ls` shows the ids", id, sandbox.ErrNotFound)
	}
	var k Key
	if err := json.Unmarshal(resp.Kvs[0].Value, &k); err != nil {
		return Key{}, 0, fmt.Errorf("decode key %s: %w", id, err)
	}
	return k, resp.Kvs[0].ModRevision, nil
}

// learn takes a key into memory ahead of the watch.
func (s *Store) learn(k Key, rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(k, rev)
}

// put keeps the newer of what is known and what comes; mu is held.
func (s *Store) put(k Key, rev int64) {
	if s.keys[k.ID].rev <= rev {
		s.keys[k.ID] = seen{k, rev}
	}
}

// unavailable wraps an error of the engine: whatever it is, the caller may try again.
func unavailable(what string, err error) error {
	return fmt.Errorf("%s: %w: the engine does not answer: %w", what, sandbox.ErrUnavailable, err)
}
