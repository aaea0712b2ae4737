package environment

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/opendsec/dsec/sandbox"
)

// KV is what the catalogue needs of a consistent store: single keys, changed by compare and swap.
// Implementations are safe for concurrent use. Errors: sandbox.ErrConflict when the revision is another,
// sandbox.ErrUnavailable when the store cannot be reached.
type KV interface {
	// Get returns the entries of keys, in their order and as of one moment; one that is not there has
	// Revision 0.
	Get(ctx context.Context, keys ...string) ([]Entry, error)
	// List returns all entries whose keys begin with prefix, sorted by key.
	List(ctx context.Context, prefix string) ([]Entry, error)
	// Keys returns up to limit keys that begin with prefix, sorted.
	Keys(ctx context.Context, prefix string, limit int) ([]string, error)
	// Put sets a key whose revision is the given one; 0 = it must not be there.
	Put(ctx context.Context, key string, value []byte, revision int64) error
	// Delete removes a key whose revision is the given one.
	Delete(ctx context.Context, key string, revision int64) error
}

// Entry is a key, its value, and the revision that any change of it changes.
type Entry struct {
	Key      string
	Value    []byte
	Revision int64
}

// Memory is a KV in memory.
type Memory struct {
	mu       sync.Mutex
	entries  map[string]Entry
	revision int64
}

// NewMemory returns an empty one.
func NewMemory() *Memory { return &Memory{entries: map[string]Entry{}} }

// Get implements KV.
func (m *Memory) Get(_ context.Context, keys ...string) ([]Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Entry, len(keys))
	for n, k := range keys {
		out[n] = m.entries[k]
		out[n].Key = k
	}
	return out, nil
}

// List implements KV.
func (m *Memory) List(ctx context.Context, prefix string) ([]Entry, error) {
	keys, err := m.Keys(ctx, prefix, math.MaxInt)
	if err != nil {
		return nil, err
	}
	return m.Get(ctx, keys...)
}

// Keys implements KV.
func (m *Memory) Keys(_ context.Context, prefix string, limit int) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(m.entries)), func(k string) bool { return !strings.HasPrefix(k, prefix) })
	return keys[:min(limit, len(keys))], nil
}

// Put implements KV.
func (m *Memory) Put(_ context.Context, key string, value []byte, revision int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries[key].Revision != revision {
		return conflict(key)
	}
	m.revision++
	m.entries[key] = Entry{Key: key, Value: slices.Clone(value), Revision: m.revision}
	return nil
}

// Delete implements KV.
func (m *Memory) Delete(_ context.Context, key string, revision int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries[key].Revision != revision {
		return conflict(key)
	}
	delete(m.entries, key)
	return nil
}

func conflict(key string) error {
	return fmt.Errorf("key %s: %w: changed meanwhile", key, sandbox.ErrConflict)
}
