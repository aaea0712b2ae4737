package tree_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/sandbox"
)

type entry = layertest.Entry

// layers makes a layer of several tars, each above the one before.
func layers(t *testing.T, opts tree.Options, form tree.Form, tars ...[]byte) (*tree.Result, error) {
	t.Helper()
	return build(t, opts, func(b *tree.Builder) error {
		for _, data := range tars {
			b.NextLayer()
			if err := b.AddTar(t.Context(), bytes.NewReader(data), form); err != nil {
				return err
			}
		}
		return nil
	})
}

// list mounts a layer and describes it briefly: path, then mode, link target or content.
func list(t *testing.T, r *tree.Result) map[string]string {
	t.Helper()
	dir := layertest.Mount(t, r.MetaPath, r.DataPath)
	out := map[string]string{}
	for path := range layertest.Describe(t, dir) {
		full := filepath.Join(dir, path)
		st, err := os.Lstat(full)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case st.IsDir():
			out[path] = fmt.Sprintf("dir %o", describeMode(st.Mode()))
		case st.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(full)
			if err != nil {
				t.Fatal(err)
			}
			out[path] = "-> " + target
		case st.Mode().IsRegular():
			b, err := os.ReadFile(full)
			if err != nil {
				t.Fatal(err)
			}
			out[path] = "= " + string(b)
		default:
			out[path] = st.Mode().Type().String()
		}
	}
	return out
}

func describeMode(m os.FileMode) uint32 {
	if m&os.ModeSticky != 0 {
		return uint32(m.Perm()) | 0o1000
	}
	return uint32(m.Perm())
}

func TestHostileNamesStayInTheTree(t *testing.T) {
	cases := map[string]struct {
		entries []entry
		want    map[string]string
	}{
		"absolute": {
			[]entry{{Name: "/etc/passwd", Body: "x"}, {Name: "//a//./b", Body: "y"}},
			map[string]string{"etc": "dir 755", "etc/passwd": "= x", "a": "dir 755", "a/b": "= y"},
		},
		"through an absolute link": {
			[]entry{{Name: "a", Link: "/etc"}, {Name: "a/passwd", Body: "x"}},
			map[string]string{"a": "-> /etc", "etc": "dir 755", "etc/passwd": "= x"},
		},
		"through a link out of the root": {
			[]entry{{Name: "a", Link: "../../../tmp"}, {Name: "a/b/c", Body: "x"}},
			map[string]string{"a": "-> ../../../tmp", "tmp": "dir 1777", "tmp/b": "dir 755", "tmp/b/c": "= x"},
		},
		"through two links": {
			[]entry{{Name: "usr/lib/"}, {Name: "lib", Link: "usr/lib"}, {Name: "l", Link: "lib"}, {Name: "l/f", Body: "x"}},
			map[string]string{"usr": "dir 755", "usr/lib": "dir 755", "lib": "-> usr/lib", "l": "-> lib", "usr/lib/f": "= x"},
		},
		"hard link through a link": {
			[]entry{{Name: "etc/shadow", Body: "tree"}, {Name: "a", Link: "/etc"}, {Name: "h", Link: "a/shadow", Type: tar.TypeLink}},
			map[string]string{"etc": "dir 755", "etc/shadow": "= tree", "a": "-> /etc", "h": "= tree"},
		},
		"hard link to a link": {
			[]entry{{Name: "a", Link: "/etc/shadow"}, {Name: "h", Link: "a", Type: tar.TypeLink}},
			map[string]string{"a": "-> /etc/shadow", "h": "-> /etc/shadow"},
		},
		"last wins": {
			[]entry{{Name: "f", Body: "1"}, {Name: "f", Body: "22"}, {Name: "d", Link: "/x"}, {Name: "d/"}, {Name: "d/y", Body: "y"},
				{Name: "g/h", Body: "z"}, {Name: "g", Body: "file"}},
			map[string]string{"f": "= 22", "d": "dir 755", "d/y": "= y", "g": "= file"},
		},
		"a directory again keeps its files": {
			[]entry{{Name: "d/f", Body: "x"}, {Name: "d/", Mode: 0o700}},
			map[string]string{"d": "dir 700", "d/f": "= x"},
		},
		"a replaced name of a shared file": {
			[]entry{{Name: "f", Body: "1"}, {Name: "g", Link: "f", Type: tar.TypeLink}, {Name: "f", Body: "2"}},
			map[string]string{"f": "= 2", "g": "= 1"},
		},
		"link to itself": {
			[]entry{{Name: "f", Body: "1"}, {Name: "f", Link: "f", Type: tar.TypeLink}},
			map[string]string{"f": "= 1"},
		},
		"missing parents": {
			[]entry{{Name: "tmp/x/f"}, {Name: "var/tmp/f"}, {Name: "root/f"}},
			map[string]string{"tmp": "dir 1777", "tmp/x": "dir 755", "tmp/x/f": "= ", "var": "dir 755", "var/tmp": "dir 1777",
				"var/tmp/f": "= ", "root": "dir 700", "root/f": "= "},
		},
		"whiteout names are names": {
			[]entry{{Name: "f", Body: "1"}, {Name: ".wh.f"}},
			map[string]string{"f": "= 1", ".wh.f": "= "},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r, err := layers(t, tree.Options{}, tree.Plain, layertest.Tar(t, c.entries...))
			if err != nil {
				t.Fatal(err)
			}
			c.want["."] = "dir 755"
			layertest.Compare(t, c.want, list(t, r))
			if r.Manifest.Files != int64(len(c.want)) {
				t.Errorf("Files = %d, want %d", r.Manifest.Files, len(c.want))
			}
		})
	}
	if _, err := os.Lstat("/tmp/b/c"); err == nil {
		t.Error("an entry reached the host")
	}
}

func TestRefusedEntries(t *testing.T) {
	many := strings.Repeat("d/", 5000)
	cases := map[string][]entry{
		"dotdot":                 {{Name: "a/../../b"}},
		"dotdot in a hard link":  {{Name: "a", Link: "../b", Type: tar.TypeLink}},
		"hard link to nothing":   {{Name: "a", Link: "etc/passwd", Type: tar.TypeLink}},
		"hard link to directory": {{Name: "d/"}, {Name: "a", Link: "d", Type: tar.TypeLink}},
		"hard link to the root":  {{Name: "a", Link: "/", Type: tar.TypeLink}},
		"below a file":           {{Name: "f"}, {Name: "f/g"}},
		"links in a circle":      {{Name: "a", Link: "b"}, {Name: "b", Link: "a"}, {Name: "a/f"}},
		"long name":              {{Name: strings.Repeat("n", 256)}},
		"long path":              {{Name: strings.Repeat("dir/", 10_000) + "f"}},
		"too deep":               {{Name: many + "f"}},
		"device":                 {{Name: "null", Type: tar.TypeChar, Major: 1, Minor: 3}},
		"whiteout device":        {{Name: "w", Type: tar.TypeChar}},
		"root is a file":         {{Name: "."}},
		"long link":              {{Name: "l", Link: strings.Repeat("x", 5000)}},
		"negative owner":         {{Name: "f", UID: -1}},
		"unknown attribute":      {{Name: "f", Xattrs: map[string]string{"system.secret": "x"}}},
		"huge attribute":         {{Name: "f", Xattrs: map[string]string{"user.a": strings.Repeat("x", 70_000)}}},
		"unknown type":           {{Name: "f", Type: 'Z'}},
	}
	for name, entries := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := layers(t, tree.Options{}, tree.Plain, layertest.Tar(t, entries...))
			if !errors.Is(err, sandbox.ErrInvalid) {
				t.Fatalf("got %v", err)
			}
			if n := strings.Count(err.Error(), "entry \""); n != 1 {
				t.Errorf("the entry is named %d times: %v", n, err)
			}
			t.Log(err)
		})
	}
}

// A chain of links must not make the tree deeper than an entry may be.
func TestDepthThroughLinks(t *testing.T) {
	var entries []entry
	deep := strings.Repeat("d/", 1000)
	at := ""
	for n := range 6 {
		entries = append(entries, entry{Name: fmt.Sprintf("%s%sf", at, deep)}, entry{Name: fmt.Sprintf("l%d", n), Link: at + deep})
		at = fmt.Sprintf("l%d/", n)
	}
	_, err := layers(t, tree.Options{}, tree.Plain, layertest.Tar(t, entries...))
	if !errors.Is(err, sandbox.ErrInvalid) {
		t.Fatalf("got %v", err)
	}
}

func TestDevicePolicies(t *testing.T) {
	data := layertest.Tar(t, entry{Name: "null", Type: tar.TypeChar, Major: 1, Minor: 3}, entry{Name: "w", Type: tar.TypeChar}, entry{Name: "f"})
	r, err := layers(t, tree.Options{Devices: tree.SkipDevices}, tree.Plain, data)
	if err != nil {
		t.Fatal(err)
	}
	layertest.Compare(t, map[string]string{".": "dir 755", "f": "= "}, list(t, r))
	if r.Stats.SkippedDevices != 2 {
		t.Errorf("SkippedDevices = %d", r.Stats.SkippedDevices)
	}
	data = layertest.Tar(t, entry{Name: "null", Type: tar.TypeChar, Major: 1, Minor: 3})
	if r, err = layers(t, tree.Options{Devices: tree.KeepDevices}, tree.Plain, data); err != nil {
		t.Fatal(err)
	}
	layertest.Compare(t, map[string]string{".": "dir 755", "null": "Dc---------"}, list(t, r))
}

func TestPrefix(t *testing.T) {
	opts := tree.Options{Prefix: "/opt/tool"}
	r, err := layers(t, opts, tree.Plain, layertest.Tar(t, entry{Name: "./", Mode: 0o700}, entry{Name: "bin/run", Body: "x"}))
	if err != nil {
		t.Fatal(err)
	}
	layertest.Compare(t, map[string]string{".": "dir 755", "opt": "dir 755", "opt/tool": "dir 700", "opt/tool/bin": "dir 755",
		"opt/tool/bin/run": "= x"}, list(t, r))
	for name, e := range map[string][]entry{
		"absolute link": {{Name: "a", Link: "/etc"}, {Name: "a/f"}},
		"relative link": {{Name: "a", Link: ".."}, {Name: "a/f"}},
	} {
		if _, err := layers(t, opts, tree.Plain, layertest.Tar(t, e...)); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s out of the prefix: %v", name, err)
		}
	}
	if _, err := tree.New(t.TempDir(), tree.Options{Prefix: "a/../b"}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("prefix with ..: %v", err)
	}
}

// An image must not steer the overlay that its layer will be part of.
func TestOverlayAttributesAreEscaped(t *testing.T) {
	r, err := layers(t, tree.Options{}, tree.Plain, layertest.Tar(t, entry{Name: "d/", Xattrs: map[string]string{
		"trusted.overlay.opaque": "y", "trusted.overlay.redirect": "/etc", "security.selinux": "label", "user.ok": "1"}}))
	if err != nil {
		t.Fatal(err)
	}
	got := layertest.Describe(t, layertest.Mount(t, r.MetaPath, r.DataPath))["d"]
	for _, want := range []string{"trusted.overlay.overlay.opaque=", "trusted.overlay.overlay.redirect=", "user.ok="} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing in %s", want, got)
		}
	}
	for _, bad := range []string{"trusted.overlay.opaque=", "selinux"} {
		if strings.Contains(got, bad) {
			t.Errorf("%s in %s", bad, got)
		}
	}
}

func TestDamagedArchives(t *testing.T) {
	plain := layertest.Tar(t, entry{Name: "a", Body: strings.Repeat("some content ", 100_000)}, entry{Name: "b", Body: "x"})
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	zipped := buf.Bytes()
	flip := func(b []byte, at int) []byte { b = bytes.Clone(b); b[at] ^= 0x55; return b }
	cases := map[string][]byte{
		"empty":              {},
		"not a tar":          bytes.Repeat([]byte("no tar "), 1000),
		"cut":                plain[:len(plain)/2],
		"cut gzip":           zipped[:len(zipped)/2],
		"corrupt gzip":       flip(zipped, len(zipped)/2),
		"gzip sum":           flip(zipped, len(zipped)-6),
		"header":             flip(plain, 100),
		"cut zstd":           {0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x00},
		"xz":                 []byte("\xfd7zXZ\x00xxxxxxxx"),
		"bzip2":              []byte("BZh9xxxxxxxxx"),
		"size beyond 2^43":   oversized(t),
		"zstd with a window": {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 0x00, 0x00, 0x00},
	}
	for name, data := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := layers(t, tree.Options{}, tree.Plain, data)
			if !errors.Is(err, sandbox.ErrInvalid) && !errors.Is(err, sandbox.ErrExhausted) {
				t.Fatalf("got %v", err)
			}
			t.Log(err)
		})
	}
}

// oversized is a header that promises a file of 2^60 bytes.
func oversized(t *testing.T) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := tar.NewWriter(&buf).WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: 1 << 60, Format: tar.FormatPAX}); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// endless yields a gzip stream of zeros that decompresses to far more than it is.
func endless(t *testing.T, size int64) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: "bomb", Typeflag: tar.TypeReg, Size: size, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(w, zeroReader{}, size); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestBombs(t *testing.T) {
	small := tree.Limits{Entries: 100, Bytes: 1 << 20, MetaBytes: 1 << 16}
	var many, fat, implied []entry
	for n := range 200 {
		many = append(many, entry{Name: fmt.Sprint(n)})
		fat = append(fat, entry{Name: fmt.Sprint(n), Xattrs: map[string]string{"user.x": strings.Repeat("x", 5000)}})
	}
	for n := range 10 {
		implied = append(implied, entry{Name: fmt.Sprint(n, strings.Repeat("/d", 20))})
	}
	cases := map[string][]byte{
		"bytes":               endless(t, 64<<20),
		"entries":             layertest.Tar(t, many...),
		"attributes":          layertest.Tar(t, fat[:90]...),
		"implied directories": layertest.Tar(t, implied...),
		"padding":             append(layertest.Tar(t, entry{Name: "f"}), make([]byte, 4<<20)...),
	}
	for name, data := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := layers(t, tree.Options{Limits: small}, tree.Plain, data)
			if !errors.Is(err, sandbox.ErrExhausted) {
				t.Fatalf("got %v", err)
			}
			t.Log(err)
		})
	}
	t.Run("disk", func(t *testing.T) {
		if _, err := tree.New(t.TempDir(), tree.Options{MinFree: 1 << 60}); !errors.Is(err, sandbox.ErrExhausted) {
			t.Fatalf("got %v", err)
		}
	})
}

// A long run of zeros is a hole, whatever it was in the archive.
func TestZerosBecomeHoles(t *testing.T) {
	r := fromTar(t, endless(t, 256<<20))
	if r.Manifest.Data.Size != 0 || r.DataPath != "" {
		t.Errorf("data of %d bytes", r.Manifest.Data.Size)
	}
	st, err := os.Stat(filepath.Join(layertest.Mount(t, r.MetaPath, ""), "bomb"))
	if err != nil || st.Size() != 256<<20 {
		t.Errorf("size %d, %v", st.Size(), err)
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	_, err := build(t, tree.Options{}, func(b *tree.Builder) error {
		r := io.TeeReader(bytes.NewReader(layertest.Tar(t, entry{Name: "a", Body: strings.Repeat("x", 8<<20)}, entry{Name: "b"})), after(1<<20, func() { cancel(cause) }))
		return b.AddTar(ctx, r, tree.Plain)
	})
	if !errors.Is(err, cause) {
		t.Fatalf("got %v", err)
	}
}

// after calls f once n bytes were written.
func after(n int, f func()) io.Writer { return &afterWriter{n, f} }

type afterWriter struct {
	left int
	f    func()
}

func (a *afterWriter) Write(p []byte) (int, error) {
	if a.left -= len(p); a.left <= 0 {
		a.f()
	}
	return len(p), nil
}
