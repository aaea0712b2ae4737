package erofs_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer/erofs"
	"github.com/opendsec/dsec/layer/layertest"
)

// builder makes trees whose expected description is known.
type builder struct {
	rng  *rand.Rand
	blob []byte
	want map[string]string
	hard map[*erofs.Inode][]string // names of files with several
	line map[*erofs.Inode]layertest.Line
}

func newBuilder(seed uint64) *builder {
	return &builder{rng: rand.New(rand.NewPCG(seed, 1)), want: map[string]string{},
		hard: map[*erofs.Inode][]string{}, line: map[*erofs.Inode]layertest.Line{}}
}

// file stores content in the blob, leaving blocks of zeros out where holes is set.
func (b *builder) file(content []byte, holes bool) *erofs.Inode {
	i := &erofs.Inode{Mode: erofs.TypeRegular | 0o644, Size: int64(len(content))}
	unit := len(content)
	if holes {
		unit = erofs.BlockSize << b.rng.IntN(4)
	}
	for off := 0; off < len(content); off += unit {
		part := content[off:min(off+unit, len(content))]
		if holes && bytes.Count(part, []byte{0}) == len(part) {
			continue
		}
		if b.rng.IntN(3) == 0 { // a gap, so that the parts are not contiguous
			b.blob = append(b.blob, bytes.Repeat([]byte{0xEE}, erofs.BlockSize)...)
		}
		i.Extents = append(i.Extents, erofs.Extent{Offset: int64(off), Length: int64(len(part)), Blob: int64(len(b.blob))})
		b.blob = append(b.blob, part...)
		b.blob = append(b.blob, make([]byte, -len(b.blob)&(erofs.BlockSize-1))...)
	}
	b.line[i] = layertest.Line{Size: i.Size, Content: fmt.Sprintf("%x", sha256.Sum256(content))}
	return i
}

func (b *builder) bytes(n int) []byte {
	p := make([]byte, n)
	for k := range p {
		p[k] = byte(b.rng.Uint32())
	}
	return p
}

// attrs dresses an inode with random owners, times and attributes.
func (b *builder) attrs(i *erofs.Inode) {
	i.Mode |= uint32(b.rng.IntN(1 << 12))
	if b.rng.IntN(3) > 0 { // else the common values that the compact form holds
		i.UID, i.GID = b.rng.Uint32(), b.rng.Uint32()
		i.Mtime, i.MtimeNsec = b.rng.Int64N(1<<35)-1<<34, uint32(b.rng.IntN(1e9))
	}
	for n := range b.rng.IntN(4) {
		prefix := []string{"trusted.", "security."}
		if t := i.Mode & erofs.TypeMask; t == erofs.TypeRegular || t == erofs.TypeDir {
			prefix = append(prefix, "user.") // the kernel shows user attributes of nothing else
		}
		name := prefix[b.rng.IntN(len(prefix))] + strings.Repeat("n", 1+b.rng.IntN(200)) + fmt.Sprint(n)
		i.Xattrs = append(i.Xattrs, erofs.Xattr{Name: name, Value: string(b.bytes(b.rng.IntN(3000)))})
	}
}

func (b *builder) describe(path string, i *erofs.Inode) {
	l := b.line[i]
	l.Mode, l.UID, l.GID, l.Mtime, l.MtimeNsec = i.Mode, i.UID, i.GID, i.Mtime, i.MtimeNsec
	l.Target, l.Major, l.Minor, l.Xattrs = i.Target, i.Major, i.Minor, map[string]string{}
	for _, x := range i.Xattrs {
		l.Xattrs[x.Name] = x.Value
	}
	if i.IsDir() {
		b.line[i] = l
		b.want[path] = l.String()
		return
	}
	b.hard[i] = append(b.hard[i], path)
	b.line[i] = l
}

// finish describes files with all their names.
func (b *builder) finish() map[string]string {
	for i, names := range b.hard {
		// WalkDir goes by names within each directory: the first name met is the least component by component.
		slices.SortFunc(names, func(x, y string) int {
			return slices.Compare(strings.Split(x, "/"), strings.Split(y, "/"))
		})
		l := b.line[i]
		l.Nlink = uint64(len(names))
		for n, name := range names {
			if n > 0 {
				l.Same = names[0]
			}
			b.want[name] = l.String()
		}
	}
	return b.want
}

// random makes a tree of about n objects.
func (b *builder) random(n int) *erofs.Inode {
	root := &erofs.Inode{Mode: erofs.TypeDir | 0o755}
	type dir struct {
		i    *erofs.Inode
		path string
	}
	dirs := []dir{{root, "."}}
	b.attrs(root)
	var files []*erofs.Inode
	for k := range n {
		d := dirs[b.rng.IntN(len(dirs))]
		name := string([]byte{byte(33 + b.rng.IntN(14)), byte(128 + b.rng.IntN(128))}) + fmt.Sprint(k)
		if name = strings.ReplaceAll(name, "/", "_"); b.rng.IntN(4) == 0 {
			name += strings.Repeat("x", b.rng.IntN(erofs.MaxNameLen-len(name)+1))
		}
		path := filepath.Join(d.path, name)
		var i *erofs.Inode
		switch kind := b.rng.IntN(12); {
		case kind < 2:
			i = &erofs.Inode{Mode: erofs.TypeDir}
			dirs = append(dirs, dir{i, path})
		case kind < 4:
			i = &erofs.Inode{Mode: erofs.TypeSymlink, Target: strings.Repeat("t", 1+b.rng.IntN([]int{20, 4095}[b.rng.IntN(2)]))}
		case kind == 4:
			i = &erofs.Inode{Mode: erofs.TypeFifo}
		case kind == 5:
			i = &erofs.Inode{Mode: erofs.TypeChar, Major: uint32(b.rng.IntN(1 << 12)), Minor: uint32(b.rng.IntN(1 << 20))}
		case kind == 6 && len(files) > 0:
			i = files[b.rng.IntN(len(files))]
			d.i.Entries = append(d.i.Entries, erofs.Dirent{Name: name, Inode: i})
			b.hard[i] = append(b.hard[i], path)
			continue
		case kind == 7:
			content := make([]byte, b.rng.IntN(300_000))
			for range b.rng.IntN(4) {
				if len(content) > 0 {
					content[b.rng.IntN(len(content))] = 1
				}
			}
			i = b.file(content, true)
		default:
			i = b.file(b.bytes(b.rng.IntN([]int{1, 100, 20_000}[b.rng.IntN(3)])), false)
		}
		if i.IsRegular() {
			files = append(files, i)
		}
		b.attrs(i)
		d.i.Entries = append(d.i.Entries, erofs.Dirent{Name: name, Inode: i})
		b.describe(path, i)
	}
	for _, d := range dirs {
		slices.SortFunc(d.i.Entries, func(x, y erofs.Dirent) int { return strings.Compare(x.Name, y.Name) })
	}
	b.describe(".", root)
	return root
}

// write stores the image and the blob of a tree, and returns their paths.
func (b *builder) write(t *testing.T, root *erofs.Inode) (meta, data string) {
	t.Helper()
	var image bytes.Buffer
	opts := erofs.Options{DataSize: int64(len(b.blob)), Devices: true}
	sum, err := erofs.Write(&image, root, opts)
	if err != nil {
		t.Fatal(err)
	}
	if sum.Size != int64(image.Len()) {
		t.Fatalf("Size = %d, wrote %d", sum.Size, image.Len())
	}
	var again bytes.Buffer
	if _, err := erofs.Write(&again, root, opts); err != nil || !bytes.Equal(image.Bytes(), again.Bytes()) {
		t.Fatalf("a second write differs (%v)", err)
	}
	read, err := erofs.Read(image.Bytes(), opts.DataSize)
	if err != nil {
		t.Fatal(err)
	}
	again.Reset()
	if _, err := erofs.Write(&again, read, opts); err != nil || !bytes.Equal(image.Bytes(), again.Bytes()) {
		t.Fatalf("what was read does not give the same image (%v)", err)
	}
	dir := t.TempDir()
	meta = filepath.Join(dir, "meta.erofs")
	if err := os.WriteFile(meta, image.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(b.blob) > 0 {
		data = filepath.Join(dir, "data")
		if err := os.WriteFile(data, b.blob, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return meta, data
}

func TestRandomTreesReadBack(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			b := newBuilder(seed)
			root := b.random(1 + b.rng.IntN(400))
			meta, data := b.write(t, root)
			layertest.Fsck(t, meta, data)
			layertest.Compare(t, b.finish(), layertest.Describe(t, layertest.Mount(t, meta, data)))
		})
	}
}

func TestHugeDirectory(t *testing.T) {
	b := newBuilder(1)
	root := &erofs.Inode{Mode: erofs.TypeDir | 0o755}
	big := &erofs.Inode{Mode: erofs.TypeDir | 0o700}
	file := b.file([]byte("x"), false)
	for n := range 100_000 {
		name := fmt.Sprintf("%06d", n)
		if n%1000 == 0 {
			name += strings.Repeat("l", erofs.MaxNameLen-len(name))
		}
		i := file // ever more links to one file
		if n%2 == 0 {
			i = b.file(nil, false)
		}
		big.Entries = append(big.Entries, erofs.Dirent{Name: name, Inode: i})
	}
	root.Entries = []erofs.Dirent{{Name: "big", Inode: big}}
	meta, data := b.write(t, root)
	layertest.Fsck(t, meta, data)
	dir := filepath.Join(layertest.Mount(t, meta, data), "big")
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 100_000 {
		t.Fatalf("%d names, %v", len(names), err)
	}
	for _, n := range []int{0, 1, 999, 1000, 50_001, 99_999} {
		st, err := linux.Lstat(filepath.Join(dir, big.Entries[n].Name))
		if err != nil {
			t.Fatal(err)
		}
		if want := uint64(1 + n%2*49_999); st.Nlink != want {
			t.Errorf("entry %d has %d links, want %d", n, st.Nlink, want)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "050000a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a name that is not there: %v", err)
	}
}

// A file of terabytes with little data must not need an index per block, and no data for its holes.
func TestSparseGiant(t *testing.T) {
	b := newBuilder(1)
	b.blob = bytes.Repeat([]byte{7}, 2*erofs.BlockSize)
	const size = 1<<42 + 5
	i := &erofs.Inode{Mode: erofs.TypeRegular | 0o600, Size: size, Extents: []erofs.Extent{
		{Offset: 1 << 30, Length: erofs.BlockSize, Blob: erofs.BlockSize},
	}}
	root := &erofs.Inode{Mode: erofs.TypeDir | 0o755, Entries: []erofs.Dirent{{Name: "f", Inode: i}}}
	if _, err := erofs.Write(&bytes.Buffer{}, root, erofs.Options{DataSize: int64(len(b.blob))}); !errors.Is(err, erofs.ErrInvalid) {
		t.Fatalf("a billion chunk indexes: %v", err)
	}
	i.Extents = []erofs.Extent{{Offset: 1 << 41, Length: size - 1<<41, Blob: 0}} // its end lies beyond the blob
	if _, err := erofs.Write(&bytes.Buffer{}, root, erofs.Options{DataSize: int64(len(b.blob))}); !errors.Is(err, erofs.ErrInvalid) {
		t.Fatalf("extent outside the blob: %v", err)
	}
	i.Size = 1<<42 + erofs.BlockSize
	i.Extents = []erofs.Extent{{Offset: 1 << 42, Length: erofs.BlockSize, Blob: erofs.BlockSize}}
	meta, data := b.write(t, root)
	f, err := os.Open(filepath.Join(layertest.Mount(t, meta, data), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, erofs.BlockSize)
	if _, err := f.ReadAt(got, 1<<42); err != nil || !bytes.Equal(got, b.blob[:erofs.BlockSize]) {
		t.Errorf("data at the end: %v", err)
	}
	if _, err := f.ReadAt(got, 1<<41); err != nil || !bytes.Equal(got, make([]byte, erofs.BlockSize)) {
		t.Errorf("hole in the middle: %v", err)
	}
}

// Image and blob behind one another are one image, for whoever cannot name a second device.
func TestConcatenation(t *testing.T) {
	b := newBuilder(77)
	root := b.random(200)
	meta, data := b.write(t, root)
	flat, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	blob, err := os.ReadFile(data)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "flat")
	if err := os.WriteFile(path, append(flat, blob...), 0o600); err != nil {
		t.Fatal(err)
	}
	layertest.Compare(t, b.finish(), layertest.Describe(t, layertest.Mount(t, path, "")))
}

func TestSuperblock(t *testing.T) {
	b := newBuilder(3)
	root := b.random(50)
	meta, _ := b.write(t, root)
	image, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	s := bytes.Clone(image[1024:4096])
	le := binary.LittleEndian
	if got := le.Uint32(s[80:]); got != 0x4|0x8 {
		t.Errorf("incompatible features %#x, want chunked files and device table", got)
	}
	if got := le.Uint32(s[8:]); got != 0x1|0x2 {
		t.Errorf("compatible features %#x, want checksum and mtime", got)
	}
	sum := le.Uint32(s[4:])
	le.PutUint32(s[4:], 0)
	if want := ^crc32.Checksum(s, crc32.MakeTable(crc32.Castagnoli)); sum != want {
		t.Errorf("checksum %#x, want %#x", sum, want)
	}
	var image2 bytes.Buffer
	if _, err := erofs.Write(&image2, &erofs.Inode{Mode: erofs.TypeDir}, erofs.Options{}); err != nil {
		t.Fatal(err)
	}
	if got := le.Uint32(image2.Bytes()[1024+80:]); got != 0x4 {
		t.Errorf("incompatible features without data %#x, want chunked files alone", got)
	}
}

func TestRefused(t *testing.T) {
	dir := func(e ...erofs.Dirent) *erofs.Inode { return &erofs.Inode{Mode: erofs.TypeDir, Entries: e} }
	file := func() *erofs.Inode { return &erofs.Inode{Mode: erofs.TypeRegular} }
	one := func(i *erofs.Inode) *erofs.Inode { return dir(erofs.Dirent{Name: "a", Inode: i}) }
	twice := dir()
	cases := map[string]*erofs.Inode{
		"root is a file":   file(),
		"dot":              dir(erofs.Dirent{Name: ".", Inode: file()}),
		"dotdot":           dir(erofs.Dirent{Name: "..", Inode: file()}),
		"slash":            dir(erofs.Dirent{Name: "a/b", Inode: file()}),
		"NUL":              dir(erofs.Dirent{Name: "a\x00", Inode: file()}),
		"long name":        dir(erofs.Dirent{Name: strings.Repeat("n", 256), Inode: file()}),
		"unsorted":         dir(erofs.Dirent{Name: "b", Inode: file()}, erofs.Dirent{Name: "a", Inode: file()}),
		"duplicate":        dir(erofs.Dirent{Name: "a", Inode: file()}, erofs.Dirent{Name: "a", Inode: file()}),
		"directory twice":  dir(erofs.Dirent{Name: "a", Inode: twice}, erofs.Dirent{Name: "b", Inode: twice}),
		"device":           one(&erofs.Inode{Mode: erofs.TypeChar, Major: 1, Minor: 3}),
		"block device 0:0": one(&erofs.Inode{Mode: erofs.TypeBlock}),
		"unknown type":     one(&erofs.Inode{Mode: 0o644}),
		"empty link":       one(&erofs.Inode{Mode: erofs.TypeSymlink}),
		"long link":        one(&erofs.Inode{Mode: erofs.TypeSymlink, Target: strings.Repeat("t", 4096)}),
		"huge file":        one(&erofs.Inode{Mode: erofs.TypeRegular, Size: math.MaxInt64}),
		"negative size":    one(&erofs.Inode{Mode: erofs.TypeRegular, Size: -1}),
		"unaligned extent": one(&erofs.Inode{Mode: erofs.TypeRegular, Size: 10, Extents: []erofs.Extent{{Offset: 0, Length: 10, Blob: 1}}}),
		"extent too long":  one(&erofs.Inode{Mode: erofs.TypeRegular, Size: 10, Extents: []erofs.Extent{{Offset: 0, Length: 11}}}),
		"xattr name":       one(&erofs.Inode{Mode: erofs.TypeRegular, Xattrs: []erofs.Xattr{{Name: "system.other"}}}),
		"xattr twice":      one(&erofs.Inode{Mode: erofs.TypeRegular, Xattrs: []erofs.Xattr{{Name: "user.a"}, {Name: "user.a"}}}),
		"xattr size":       one(&erofs.Inode{Mode: erofs.TypeRegular, Xattrs: []erofs.Xattr{{Name: "user.a", Value: strings.Repeat("v", 1<<16)}}}),
	}
	for name, root := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := erofs.Write(&bytes.Buffer{}, root, erofs.Options{DataSize: 4096})
			if !errors.Is(err, erofs.ErrInvalid) && !errors.Is(err, erofs.ErrTooLarge) {
				t.Fatalf("got %v", err)
			}
		})
	}
	if _, err := erofs.Write(&bytes.Buffer{}, one(&erofs.Inode{Mode: erofs.TypeChar}), erofs.Options{}); err != nil {
		t.Errorf("a whiteout is allowed: %v", err)
	}
}

// The kernel mounts an image whose blob it was not told of. Its data must then be unreadable, not wrong.
func TestWithoutItsBlobDataIsUnreadable(t *testing.T) {
	b := newBuilder(5)
	root := &erofs.Inode{Mode: erofs.TypeDir | 0o755}
	for n := range 50 {
		root.Entries = append(root.Entries, erofs.Dirent{Name: fmt.Sprintf("%02d", n), Inode: b.file(b.bytes(1+n*3000), false)})
	}
	meta, _ := b.write(t, root)
	dir := layertest.Mount(t, meta, "")
	for _, e := range root.Entries {
		if got, err := os.ReadFile(filepath.Join(dir, e.Name)); err == nil {
			t.Errorf("%s: read %d bytes", e.Name, len(got))
		}
	}
}
