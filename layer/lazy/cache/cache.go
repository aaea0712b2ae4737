package cache

import (
	"container/list"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"syscall"
	"time"

	"github.com/zeebo/blake3"

	"github.com/opendsec/dsec/internal/linux"
)

// Key is the digest of a chunk.
type Key [32]byte

// ParseKey reads the digest as it stands in a manifest.
func ParseKey(s string) (k Key, err error) {
	if n, err := hex.Decode(k[:], []byte(s)); err != nil || n != len(k) {
		return k, fmt.Errorf("chunk digest %.80q is not 64 hexadecimal digits", s)
	}
	return k, nil
}

// Sum is the key of a content.
func Sum(b []byte) Key { return blake3.Sum256(b) }

func (k Key) String() string { return hex.EncodeToString(k[:]) }

// MinLimit is the least that a cache may be bounded by, bytes.
const MinLimit = 16 << 20

// Options of a cache.
type Options struct {
	Limit int64        // bytes; at least MinLimit
	Log   *slog.Logger // nil = discarded
	// MinFree is what stays free on the disk, bytes: below it chunks go and no new ones come.
	MinFree int64
}

// Stats are counters since the cache was opened, and what it holds.
type Stats struct {
	Chunks     int64 `json:"chunks"`
	Bytes      int64 `json:"bytes"`
	LimitBytes int64 `json:"limitBytes"`
	Pinned     int64 `json:"pinned"` // chunks that are being read
	Hits       int64 `json:"hits"`
	HitBytes   int64 `json:"hitBytes"`
	Misses     int64 `json:"misses"`
	Written    int64 `json:"writtenBytes"`
	Evicted    int64 `json:"evicted"`
	Damaged    int64 `json:"damaged"` // chunks that were not what their name says, and were removed
	NoRoom     int64 `json:"noRoom"`  // chunks that were not kept for want of room
}

// Cache is safe for concurrent use by one process.
type Cache struct {
	dir string
	o   Options

	mu      sync.Mutex
	entries map[Key]*entry
	lru     *list.List // front = read last
	stats   Stats
	quiet   time.Time // no word about a full disk before then
}

type entry struct {
	key  Key
	size int64
	pins int
	gone bool
	elem *list.Element
}

// Open reads what an earlier process left in dir. It is trusted to be no more than what was once written.
func Open(dir string, o Options) (*Cache, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Limit = max(o.Limit, MinLimit)
	c := &Cache{dir: dir, o: o, entries: map[Key]*entry{}, lru: list.New()}
	if err := os.RemoveAll(filepath.Join(dir, "new")); err != nil {
		return nil, fmt.Errorf("open chunk cache: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "new"), 0o700); err != nil {
		return nil, fmt.Errorf("open chunk cache: %w", err)
	}
	for n := range 256 {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprintf("%02x", n)), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("open chunk cache: %w", err)
		}
	}
	if err := c.load(); err != nil {
		return nil, fmt.Errorf("open chunk cache: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.evict(0)
	return c, nil
}

// load lists the chunks on disk, the oldest to go first.
func (c *Cache) load() error {
	type found struct {
		e    *entry
		when time.Time
	}
	var all []found
	for n := range 256 {
		sub := fmt.Sprintf("%02x", n)
		names, err := os.ReadDir(filepath.Join(c.dir, sub))
		if err != nil {
			return err
		}
		for _, f := range names {
			st, err := f.Info()
			if err != nil {
				continue
			}
			k, err := ParseKey(sub + f.Name())
			if err != nil || !st.Mode().IsRegular() || st.Size() == 0 {
				_ = os.RemoveAll(filepath.Join(c.dir, sub, f.Name()))
				continue
			}
			all = append(all, found{&entry{key: k, size: st.Size()}, st.ModTime()})
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].when.Before(all[j].when) })
	for _, f := range all {
		c.entries[f.e.key] = f.e
		f.e.elem = c.lru.PushFront(f.e)
		c.stats.Bytes += f.e.size
	}
	return nil
}

func (c *Cache) path(k Key) string {
	s := k.String()
	return filepath.Join(c.dir, s[:2], s[2:])
}

// Has tells whether a chunk is there, good or not.
func (c *Cache) Has(k Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries[k] != nil
}

// Read fills b with a chunk, whose size it has, and compares that with its digest; not good = it is not there, or was
// damaged and is now gone. While it is being read it is not evicted. It is fastest where b begins at a page.
func (c *Cache) Read(k Key, b []byte) (good, damaged bool) {
	e := c.pin(k)
	if e == nil {
		return false, false
	}
	err := linux.ReadWhole(c.path(k), b)
	good = err == nil && Sum(b) == k
	c.mu.Lock()
	defer c.mu.Unlock()
	e.pins--
	if good {
		c.stats.Hits++
		c.stats.HitBytes += int64(len(b))
		return true, false
	}
	c.stats.Misses++
	if damaged = !e.gone; damaged {
		c.stats.Damaged++
		c.drop(e)
		c.o.Log.Error("chunk in the cache is damaged: it is removed and fetched again", "chunk", k.String(), "err", err)
	}
	return false, damaged
}

func (c *Cache) pin(k Key) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[k]
	if e == nil {
		c.stats.Misses++
		return nil
	}
	e.pins++
	c.lru.MoveToFront(e.elem)
	return e
}

// Put keeps a chunk whose digest the caller has verified. It fails silently: what is not kept is fetched again.
func (c *Cache) Put(k Key, b []byte) {
	size := int64(len(b))
	c.mu.Lock()
	if c.entries[k] != nil || size == 0 {
		c.mu.Unlock()
		return
	}
	c.evict(size)
	c.mu.Unlock()
	err := c.write(k, b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.stats.NoRoom++
		if now := time.Now(); now.After(c.quiet) {
			c.quiet = now.Add(time.Minute)
			c.o.Log.Warn("chunks are not kept in the cache", "err", err)
		}
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			c.shrink(c.stats.Bytes - 16*size)
		}
		return
	}
	c.stats.Written += size
	if c.entries[k] != nil {
		return // another writer was first; the file is as good
	}
	e := &entry{key: k, size: size}
	c.entries[k] = e
	e.elem = c.lru.PushFront(e)
	c.stats.Bytes += size
}

// write makes the file whole and then gives it its name.
func (c *Cache) write(k Key, b []byte) error {
	if c.o.MinFree > 0 {
		var st syscall.Statfs_t
		if err := syscall.Statfs(c.dir, &st); err == nil && int64(st.Bavail)*st.Bsize < c.o.MinFree {
			return fmt.Errorf("%w: less than %d MiB are free", syscall.ENOSPC, c.o.MinFree>>20)
		}
	}
	f, err := os.CreateTemp(filepath.Join(c.dir, "new"), "")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), c.path(k))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// evict makes room for more bytes: above the limit, down to nine tenths of it. c.mu is held.
func (c *Cache) evict(more int64) {
	if c.stats.Bytes+more > c.o.Limit {
		c.shrink(c.o.Limit/10*9 - more)
	}
}

// shrink removes the chunks that were not read for longest until no more than size bytes are left. c.mu is held.
func (c *Cache) shrink(size int64) {
	for el := c.lru.Back(); el != nil && c.stats.Bytes > size; {
		e := el.Value.(*entry)
		el = el.Prev()
		if e.pins == 0 {
			c.drop(e)
			c.stats.Evicted++
		}
	}
}

// drop forgets and removes a chunk; who has its file open reads on. c.mu is held.
func (c *Cache) drop(e *entry) {
	e.gone = true
	c.lru.Remove(e.elem)
	delete(c.entries, e.key)
	c.stats.Bytes -= e.size
	if err := os.Remove(c.path(e.key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.o.Log.Warn("remove chunk from the cache", "chunk", e.key.String(), "err", err)
	}
}

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Chunks, s.LimitBytes = int64(len(c.entries)), c.o.Limit
	for _, e := range c.entries {
		if e.pins > 0 {
			s.Pinned++
		}
	}
	return s
}
