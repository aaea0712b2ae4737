package lazy_test

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/lazy"
)

const mib = 1 << 20

// far is the offset of a piece that nobody has read, nor read ahead to.
const far = 15 * mib

// one mounts a layer with one file of 20 MiB, of which the first is read.
func one(t *testing.T, edit func(*lazy.Options)) (r *rig, d layer.Digest, file string, data []byte) {
	t.Helper()
	r = newRig(t, edit)
	r.start()
	s := r.publish(1, 20*mib)
	file = filepath.Join(r.mount(s.Digest), "file-1")
	if _, err := readAt(file, 0, 4096); err != nil {
		t.Fatal(err)
	}
	return r, s.Digest, file, s.Data
}

// good reads a piece and compares it.
func good(t *testing.T, file string, data []byte, off int64, size int) {
	t.Helper()
	if b, err := readAt(file, off, size); err != nil || string(b) != string(data[off:off+int64(size)]) {
		t.Errorf("%d bytes at %d: %v, or other content", size, off, err)
	}
}

// faulty tells whether a fault of the layer was written down since a moment.
func faulty(t *testing.T, r *rig, d layer.Digest, since time.Time) bool {
	t.Helper()
	id, err := lazy.NodeID(d)
	if err != nil {
		t.Fatal(err)
	}
	f := lazy.NewFaultReader(r.faultFile())
	defer f.Close()
	return f.Between(map[uint64]bool{id: true}, since, time.Now())
}

// repaired tells how often a fault of the layer was written down that no reader saw.
func repaired(t *testing.T, r *rig, d layer.Digest, what string) (n int) {
	t.Helper()
	id, err := lazy.NodeID(d)
	if err != nil {
		t.Fatal(err)
	}
	f := lazy.NewFaultReader(r.faultFile())
	defer f.Close()
	for _, x := range f.News() {
		if x.Layer == id && x.What == what {
			n += x.Count
		}
	}
	return n
}

func TestSlowStoreIsWaitedFor(t *testing.T) {
	r, d, file, data := one(t, nil)
	start := time.Now()
	release := r.store.Stop()
	before := r.store.Requests.Load()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() { good(t, file, data, far, 4096) })
	}
	for r.store.Requests.Load() == before {
		time.Sleep(time.Millisecond)
	}
	release()
	wg.Wait()
	if faulty(t, r, d, start) {
		t.Error("a fault was written down")
	}
	// The 16 asked for one chunk, and the kernel for some more.
	if n := r.store.Requests.Load() - before; n > 4 {
		t.Errorf("%d requests for one chunk", n)
	}
}

func TestStoreGone(t *testing.T) {
	r, d, file, data := one(t, nil)
	start := time.Now()
	r.store.Gone(true)
	r.dropPages(d, file)
	good(t, file, data, 0, 4096) // from the cache
	if faulty(t, r, d, start) {
		t.Error("reading from the cache was written down as a fault")
	}
	_, err := readAt(file, far, 4096)
	wantEIO(t, err)
	if took := time.Since(start); took < timeout {
		t.Errorf("EIO after %v, the timeout is %v", took, timeout)
	}
	if !faulty(t, r, d, start) || r.server.Stats().Faults == 0 {
		t.Error("the fault was not written down")
	}
	r.store.Gone(false)
	good(t, file, data, far, 4096)
	same(t, file, data[:20*mib])
}

// A store that does not return at all holds nobody longer, and nobody who reads what is here.
func TestStoreHangs(t *testing.T) {
	r, d, file, data := one(t, func(o *lazy.Options) { o.Requests = 2 })
	release := r.store.Stop()
	defer release()
	var wg sync.WaitGroup
	for n := range 6 {
		wg.Go(func() {
			_, err := readAt(file, int64(8+2*n)*mib, 4096)
			wantEIO(t, err)
		})
	}
	r.dropPages(d, file)
	good(t, file, data, 0, 4096)
	wg.Wait()
	release()
	same(t, file, data[:20*mib])
}

func TestDamagedStore(t *testing.T) {
	r, d, file, data := one(t, nil)
	var bent atomic.Int64
	r.store.Bend(func(p []byte, _ int64) {
		if bent.Add(1) == 1 {
			p[len(p)/2] ^= 1
		}
	})
	start := time.Now()
	same(t, file, data[:20*mib])
	if st := r.server.Stats(); st.StoreDamaged != 1 || faulty(t, r, d, start) {
		t.Errorf("a flip that passes: %+v", st)
	}
	if n := repaired(t, r, d, lazy.FaultStoreDamaged); n != 1 {
		t.Errorf("a flip that passes was written down %d times", n)
	}
	// One that stays is never served.
	s2 := r.publish(2, 4*mib)
	file2 := filepath.Join(r.mount(s2.Digest), "file-2")
	r.store.Bend(func(p []byte, off int64) {
		if n := 2*mib + 5 - off; n >= 0 && n < int64(len(p)) {
			p[n] ^= 0x80
		}
	})
	_, err := readAt(file2, 2*mib, 4096)
	wantEIO(t, err)
	if !faulty(t, r, s2.Digest, start) {
		t.Error("the fault was not written down")
	}
	if faulty(t, r, d, start) {
		t.Error("the fault was written down for another layer as well")
	}
	good(t, file2, s2.Data, 0, mib) // the rest is good
	r.store.Bend(nil)
	same(t, file2, s2.Data[:4*mib])
}

func TestTruncatedObject(t *testing.T) {
	r, d, file, data := one(t, nil)
	start := time.Now()
	r.store.Cut(10*mib + 1000)
	good(t, file, data, 10*mib-layer.ChunkSize, layer.ChunkSize)
	_, err := readAt(file, 10*mib+layer.ChunkSize, 4096)
	wantEIO(t, err)
	if !faulty(t, r, d, start) || repaired(t, r, d, lazy.FaultStoreTruncated) == 0 {
		t.Error("the fault was not written down")
	}
	r.store.Cut(0)
	same(t, file, data[:20*mib])
}

// chunkFiles lists what is in the cache.
func chunkFiles(t *testing.T, r *rig) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(r.o.Dir, "chunks", "??", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The cache is used again by the next server, as far as it is good: also after the machine's crash, of which cut, empty
// and changed files are what may be left.
func TestDamagedCache(t *testing.T) {
	r, d, file, data := one(t, nil)
	same(t, file, data[:20*mib])
	r.halt()
	files := chunkFiles(t, r)
	if len(files) != 80 {
		t.Fatalf("%d chunks in the cache, want 80", len(files))
	}
	for n, change := range []func(string) error{
		func(p string) error { return os.Truncate(p, 0) },
		func(p string) error { return os.Truncate(p, 1000) },
		func(p string) error { return os.WriteFile(p, make([]byte, layer.ChunkSize), 0) },
		func(p string) error {
			b, err := os.ReadFile(p)
			if err == nil {
				b[77] ^= 4
				err = os.WriteFile(p, b, 0)
			}
			return err
		},
		os.Remove,
		func(p string) error { return os.WriteFile(filepath.Join(filepath.Dir(p), "x"), nil, 0) },
	} {
		if err := change(files[n]); err != nil {
			t.Fatal(err)
		}
	}
	r.start()
	r.dropPages(d, file)
	before := r.store.Requests.Load()
	same(t, file, data[:20*mib])
	st := r.server.Stats()
	if n := r.store.Requests.Load() - before; n < 3 || n > 10 {
		t.Errorf("%d requests for 5 chunks", n)
	}
	r.halt() // writes what it has counted
	if n := repaired(t, r, d, lazy.FaultCacheDamaged); n != 3 {
		t.Errorf("%d damaged chunks were written down, want 3", n)
	}
	if st.Cache.Damaged != 3 || st.FetchedBytes < 5*layer.ChunkSize || st.FetchedBytes > 10*layer.ChunkSize {
		t.Errorf("%+v", st)
	}
}

func TestCacheIsBounded(t *testing.T) {
	r, d, file, data := one(t, func(o *lazy.Options) { o.Cache = 16 * mib })
	for range 2 {
		same(t, file, data[:20*mib])
		r.dropPages(d, file)
	}
	st := r.server.Stats()
	size := int64(0)
	for _, f := range chunkFiles(t, r) {
		if fi, err := os.Stat(f); err == nil {
			size += fi.Size()
		}
	}
	if st.Cache.Bytes > 16*mib || st.Cache.Evicted == 0 || size > 16*mib {
		t.Errorf("%d bytes on disk; %+v", size, st.Cache)
	}
	// Smaller than what is there.
	r.halt()
	r.o.Cache = 8 * mib // less than the least
	r.start()
	if st := r.server.Stats(); st.Cache.LimitBytes != 16*mib {
		t.Errorf("%+v", st.Cache)
	}
}

// A disk without room makes reading slower and nothing else.
func TestCacheDiskFull(t *testing.T) {
	r := newRig(t, nil)
	chunks := filepath.Join(r.o.Dir, "chunks")
	if err := os.MkdirAll(chunks, 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := linux.NewMount("tmpfs", linux.NoDev, linux.Option{Key: "size", Value: "5m"})
	if err != nil {
		t.Fatal(err)
	}
	if err := linux.AttachMount(m, chunks); err != nil {
		t.Fatal(err)
	}
	m.Close()
	r.ends = append(r.ends, func() {
		r.halt()
		if err := linux.Unmount(chunks); err != nil {
			t.Error(err)
		}
	})
	r.start()
	s := r.publish(1, 20*mib)
	file := filepath.Join(r.mount(s.Digest), "file-1")
	for range 2 {
		same(t, file, s.Data[:20*mib])
		r.dropPages(s.Digest, file)
	}
	if st := r.server.Stats(); st.Cache.NoRoom == 0 || st.Faults != 0 || st.Cache.Bytes > 5*mib {
		t.Errorf("%+v", st)
	}
}

// Layers share what they have in common.
func TestSharedChunks(t *testing.T) {
	r, _, file, data := one(t, nil)
	same(t, file, data[:20*mib])
	s := r.publish(1, 19*mib) // the same bytes, another layer
	other := filepath.Join(r.mount(s.Digest), "file-1")
	before := r.store.Requests.Load()
	same(t, other, data[:19*mib])
	if n := r.store.Requests.Load() - before; n != 0 {
		t.Errorf("%d requests for what another layer has brought", n)
	}
}

func TestDeleteWaitsForUsers(t *testing.T) {
	r, d, file, data := one(t, nil)
	ctx := t.Context()
	if err := r.server.Delete(ctx, d); err != nil {
		t.Fatal(err)
	}
	if _, err := r.server.Attach(ctx, d); err == nil {
		t.Error("a deleted layer can be attached")
	}
	same(t, file, data[:20*mib])
	r.ends[len(r.ends)-1]() // unmounts
	r.ends = r.ends[:len(r.ends)-1]
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		all, err := r.store.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nobody uses it, and it is still there")
		}
	}
	if left, err := os.ReadDir(filepath.Join(r.o.Dir, "layers")); err != nil || len(left) != 0 {
		t.Errorf("left on the node: %v, %v", left, err)
	}
}

func TestMetadataIsVerified(t *testing.T) {
	r, d, _, _ := one(t, nil)
	r.halt()
	meta := filepath.Join(r.o.Dir, "layers", d.Hex(), "meta.erofs")
	b, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	b[1100] ^= 1
	if err := os.Remove(meta); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(meta, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r.start()
	l, err := r.server.Attach(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(l.MetaPath)
	b[1100] ^= 1
	if err != nil || string(got) != string(b) {
		t.Errorf("damaged metadata was given out, %v", err)
	}
	r.store.Gone(true)
	s := r.publish(3, 10)
	if _, err := r.server.Attach(t.Context(), s.Digest); err == nil {
		t.Error("a layer of a store that is gone was attached")
	}
}
