package layertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/erofs"
	"github.com/opendsec/dsec/sandbox"
)

// Sample is a small valid layer.
type Sample struct {
	Manifest   *layer.Manifest
	Digest     layer.Digest
	Meta, Data []byte
}

// NewSample makes a layer with one file of size bytes; the same for the same arguments.
func NewSample(t testing.TB, seed uint64, size int) *Sample {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 3))
	s := &Sample{Data: make([]byte, (size+4095)/4096*4096)}
	for n := range size {
		s.Data[n] = byte(rng.Uint32() | 1)
	}
	file := &erofs.Inode{Mode: erofs.TypeRegular | 0o644, Size: int64(size)}
	if size > 0 {
		file.Extents = []erofs.Extent{{Length: int64(size)}}
	}
	root := &erofs.Inode{Mode: erofs.TypeDir | 0o755, Entries: []erofs.Dirent{{Name: fmt.Sprintf("file-%d", seed), Inode: file}}}
	var meta bytes.Buffer
	if _, err := erofs.Write(&meta, root, erofs.Options{DataSize: int64(len(s.Data))}); err != nil {
		t.Fatal(err)
	}
	s.Meta = meta.Bytes()
	var mc, dc layer.Chunker
	_, _ = mc.Write(s.Meta)
	_, _ = dc.Write(s.Data)
	s.Manifest = &layer.Manifest{Version: layer.ManifestVersion, Meta: mc.Blob(), Data: dc.Blob(), Files: 2,
		Config: layer.Config{Env: []string{"A=<b>&c"}}}
	var err error
	if _, s.Digest, err = s.Manifest.Encode(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Sample) put(ctx context.Context, st layer.Store) (layer.Digest, error) {
	return st.Put(ctx, s.Manifest, bytes.NewReader(s.Meta), bytes.NewReader(s.Data))
}

// RunStore checks what every Store must do. open returns an empty store; called with the same name it opens the
// same store again, as another process would.
func RunStore(t *testing.T, open func(t *testing.T, name string) layer.Store) {
	ctx := t.Context()
	read := func(t *testing.T, f func(context.Context, layer.Digest) (io.ReadCloser, error), d layer.Digest) []byte {
		t.Helper()
		r, err := f(ctx, d)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	same := func(t *testing.T, st layer.Store, s *Sample) {
		t.Helper()
		m, err := st.Get(ctx, s.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if _, d, err := m.Encode(); err != nil || d != s.Digest {
			t.Fatalf("manifest encodes to %s, %v; want %s", d, err, s.Digest)
		}
		if !bytes.Equal(read(t, st.OpenMeta, s.Digest), s.Meta) || !bytes.Equal(read(t, st.OpenData, s.Digest), s.Data) {
			t.Fatal("content differs from what was put")
		}
	}

	t.Run("PutGet", func(t *testing.T) {
		st := open(t, "a")
		for _, size := range []int{0, 1, 4096, layer.ChunkSize, layer.ChunkSize*3 + 5} {
			s := NewSample(t, 1, size)
			if d, err := s.put(ctx, st); err != nil || d != s.Digest {
				t.Fatalf("size %d: Put = %s, %v; want %s", size, d, err, s.Digest)
			}
			same(t, st, s)
			same(t, open(t, "a"), s)
		}
	})
	t.Run("Ranges", func(t *testing.T) {
		st := open(t, "a")
		s, empty := NewSample(t, 5, layer.ChunkSize*5+7), NewSample(t, 6, 0)
		for _, s := range []*Sample{s, empty} {
			if _, err := s.put(ctx, st); err != nil {
				t.Fatal(err)
			}
		}
		size := len(s.Data)
		for _, r := range [][2]int{{0, size}, {0, 1}, {size - 1, size}, {layer.ChunkSize, 3 * layer.ChunkSize}, {12345, 999_999}, {7, 7}} {
			p := make([]byte, r[1]-r[0])
			if err := st.ReadData(ctx, s.Digest, p, int64(r[0])); err != nil || !bytes.Equal(p, s.Data[r[0]:r[1]]) {
				t.Errorf("bytes %d to %d: %v, or other content", r[0], r[1], err)
			}
		}
		for _, r := range []struct {
			d         layer.Digest
			off, size int
		}{{s.Digest, size, 1}, {s.Digest, size - 5, 10}, {s.Digest, size + 1<<20, 10}, {empty.Digest, 0, 1}} {
			if err := st.ReadData(ctx, r.d, make([]byte, r.size), int64(r.off)); !errors.Is(err, layer.ErrDamaged) || !errors.Is(err, sandbox.ErrUnavailable) {
				t.Errorf("%d bytes at %d, beyond the end: %v", r.size, r.off, err)
			}
		}
		var wg sync.WaitGroup
		for n := range 8 {
			wg.Go(func() {
				p := make([]byte, layer.ChunkSize)
				for i := range 5 {
					off := (i + n) % 5 * layer.ChunkSize
					if err := st.ReadData(ctx, s.Digest, p, int64(off)); err != nil || !bytes.Equal(p, s.Data[off:off+layer.ChunkSize]) {
						t.Errorf("at %d beside others: %v, or other content", off, err)
					}
				}
			})
		}
		wg.Wait()
		gone, cancel := context.WithCancel(ctx)
		cancel()
		if err := st.ReadData(gone, s.Digest, make([]byte, 1), 0); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}
	})
	t.Run("NotFound", func(t *testing.T) {
		st := open(t, "a")
		d := NewSample(t, 1, 1).Digest
		_, gerr := st.Get(ctx, d)
		_, merr := st.OpenMeta(ctx, d)
		_, derr := st.OpenData(ctx, d)
		for _, err := range []error{gerr, merr, derr, st.ReadData(ctx, d, make([]byte, 10), 0), st.Delete(ctx, d)} {
			if !errors.Is(err, sandbox.ErrNotFound) {
				t.Errorf("got %v", err)
			}
		}
	})
	t.Run("BadDigest", func(t *testing.T) {
		st := open(t, "a")
		for _, d := range []layer.Digest{"", "b3:", "b3:../../etc", layer.Digest("b3:" + string(bytes.Repeat([]byte("A"), 64)))} {
			if _, err := st.Get(ctx, d); !errors.Is(err, sandbox.ErrInvalid) {
				t.Errorf("Get(%q): %v", d, err)
			}
		}
	})
	t.Run("Twice", func(t *testing.T) {
		st := open(t, "a")
		s := NewSample(t, 2, 100)
		for range 2 {
			if d, err := s.put(ctx, st); err != nil || d != s.Digest {
				t.Fatalf("Put = %s, %v", d, err)
			}
		}
		if all, err := st.List(ctx); err != nil || len(all) != 1 {
			t.Fatalf("List = %v, %v", all, err)
		}
	})
	t.Run("Concurrent", func(t *testing.T) {
		stores := []layer.Store{open(t, "a"), open(t, "a")}
		s := NewSample(t, 3, layer.ChunkSize*2)
		var wg sync.WaitGroup
		errs := make([]error, 16)
		for n := range errs {
			wg.Go(func() { _, errs[n] = s.put(ctx, stores[n%len(stores)]) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		same(t, stores[0], s)
	})
	t.Run("Refused", func(t *testing.T) {
		st := open(t, "a")
		s := NewSample(t, 4, 10_000)
		flipped := bytes.Clone(s.Data)
		flipped[5000] ^= 1
		for name, data := range map[string][]byte{"flipped": flipped, "short": s.Data[:4096]} {
			if _, err := st.Put(ctx, s.Manifest, bytes.NewReader(s.Meta), bytes.NewReader(data)); !errors.Is(err, sandbox.ErrInvalid) {
				t.Errorf("%s data: %v", name, err)
			}
		}
		bad := *s.Manifest
		bad.Data.Chunks = nil
		if _, err := st.Put(ctx, &bad, bytes.NewReader(s.Meta), bytes.NewReader(s.Data)); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("manifest without chunks: %v", err)
		}
		stopped, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := s.put(stopped, st); !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}
		if all, err := st.List(ctx); err != nil || len(all) != 0 {
			t.Errorf("List after refused layers = %v, %v", all, err)
		}
	})
	t.Run("ListDelete", func(t *testing.T) {
		st := open(t, "a")
		var want []layer.Digest
		for n := range uint64(5) {
			s := NewSample(t, 10+n, 10)
			if _, err := s.put(ctx, st); err != nil {
				t.Fatal(err)
			}
			want = append(want, s.Digest)
		}
		if err := st.Delete(ctx, want[0]); err != nil {
			t.Fatal(err)
		}
		got, err := st.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		want = want[1:]
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("List = %v, want %v", got, want)
		}
	})
	t.Run("Files", func(t *testing.T) {
		st, ok := open(t, "a").(layer.FileStore)
		if !ok {
			t.Skip("not a FileStore")
		}
		runFiles(t, st, same)
	})
}
