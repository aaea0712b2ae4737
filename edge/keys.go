package edge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

const (
	keyLifetime = 24 * time.Hour
	maxKeys     = 100_000
)

// keys are the idempotency keys of creations. While a sandbox is kept its journal holds its key; of forgotten
// ones they are kept in a file of their own until 24 hours after the creation.
type keys struct {
	path string
	wall func() time.Time

	mu     sync.Mutex
	m      map[string]*creation
	pruned time.Time
	file   *os.File
}

// creation is what was asked for under one key, and what became of it.
type creation struct {
	key  string
	hash []byte
	at   time.Time
	ids  []string      // by item; "" = not made, or failed
	busy chan struct{} // while a request works on it; closed when it is done
}

func newKeys(path string, wall func() time.Time) *keys {
	return &keys{path: path, wall: wall, m: map[string]*creation{}}
}

// scoped is a key as its owner means it.
func scoped(keyID, key string) string { return keyID + "\x00" + key }

// begin takes a key for a request of this body and count; end must follow. It waits for a request that is
// working under the same key. Error: ErrAlreadyExists for another body.
func (k *keys) begin(ctx context.Context, key string, hash []byte, count int) (*creation, error) {
	for {
		k.mu.Lock()
		k.prune()
		c := k.m[key]
		if c == nil {
			if len(k.m) >= maxKeys {
				k.mu.Unlock()
				return nil, fmt.Errorf("idempotency key: %w: %d keys of the last 24 hours are kept", sandbox.ErrExhausted, maxKeys)
			}
			c = &creation{key: key, hash: hash, at: k.wall(), ids: make([]string, count), busy: make(chan struct{})}
			k.m[key] = c
			k.mu.Unlock()
			return c, nil
		}
		if !bytes.Equal(c.hash, hash) {
			k.mu.Unlock()
			return nil, fmt.Errorf("idempotency key: %w: it was used at %s with another body; use a new key for a new request",
				sandbox.ErrAlreadyExists, c.at.UTC().Format(time.RFC3339))
		}
		busy := c.busy
		if busy == nil {
			c.busy = make(chan struct{})
			k.mu.Unlock()
			return c, nil
		}
		k.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// made notes the sandbox of an item.
func (k *keys) made(c *creation, item int, id sandbox.ID) {
	k.mu.Lock()
	c.ids[item] = string(id)
	k.mu.Unlock()
}

// end lets the next request under this key go on. A key under which nothing was made is free again.
func (k *keys) end(c *creation) {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(c.busy)
	c.busy = nil
	for _, id := range c.ids {
		if id != "" {
			return
		}
	}
	delete(k.m, c.key)
}

func (k *keys) prune() {
	now := k.wall()
	if now.Sub(k.pruned) < time.Minute {
		return
	}
	k.pruned = now
	for key, c := range k.m {
		if c.busy == nil && now.Sub(c.at) > keyLifetime {
			delete(k.m, key)
		}
	}
}

// kept is one line of the file.
type kept struct {
	Key   string    `json:"key"`
	Hash  []byte    `json:"hash"`
	At    time.Time `json:"at"`
	Item  int       `json:"item"`
	Count int       `json:"count"`
	ID    string    `json:"id"`
}

// restore notes what a record, or the file, says about a key.
func (k *keys) restore(l kept) {
	if l.Count < 1 || l.Count > maxBatch || l.Item < 0 || l.Item >= l.Count || k.wall().Sub(l.At) > keyLifetime {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.m[l.Key]
	if c == nil {
		c = &creation{key: l.Key, hash: l.Hash, at: l.At, ids: make([]string, l.Count)}
		k.m[l.Key] = c
	}
	if len(c.ids) == l.Count && c.ids[l.Item] == "" {
		c.ids[l.Item] = l.ID
	}
}

// load reads the file and rewrites it without what has expired.
func (k *keys) load() error {
	b, err := os.ReadFile(k.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read idempotency keys: %w", err)
	}
	var live bytes.Buffer
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		var l kept
		if json.Unmarshal(sc.Bytes(), &l) != nil || k.wall().Sub(l.At) > keyLifetime {
			continue // the torn last line, or an old one
		}
		k.restore(l)
		live.Write(sc.Bytes())
		live.WriteByte('\n')
	}
	err = os.WriteFile(k.path+".new", live.Bytes(), 0o600)
	if err == nil {
		err = os.Rename(k.path+".new", k.path)
	}
	if err != nil { // for want of room, it may be: then the file keeps what has expired
		_ = os.Remove(k.path + ".new")
	}
	return nil
}

// outlive keeps the key of a sandbox whose record goes.
func (k *keys) outlive(c *record.Created, id string) error {
	if c.GetIdempotencyKey() == "" {
		return nil
	}
	key := scoped(c.KeyId, c.IdempotencyKey)
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.m[key]
	if known == nil || int(c.Item) >= len(known.ids) || known.ids[c.Item] != id {
		return nil
	}
	line, err := json.Marshal(kept{Key: key, Hash: c.BodyHash, At: known.at, Item: int(c.Item), Count: int(c.Count), ID: id})
	if err != nil {
		return err
	}
	if k.file == nil {
		if k.file, err = os.OpenFile(k.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			return fmt.Errorf("write idempotency keys: %w", err)
		}
	}
	if _, err := k.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write idempotency keys: %w", err)
	}
	return nil
}

func (k *keys) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file == nil {
		return nil
	}
	f := k.file
	k.file = nil
	return f.Close()
}
