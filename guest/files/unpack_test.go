package files

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func archive(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, strings.Repeat("d", int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	return b.Bytes()
}

// FuzzUnpack: no archive changes anything outside its directory.
func FuzzUnpack(f *testing.F) {
	reg := func(name string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 3, Mode: 0o644}
	}
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
	}
	f.Add(archive(f, reg("a"), reg("b/c"), tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o700}))
	f.Add(archive(f, link("l", "../outside"), reg("l/x")))
	f.Add(archive(f, link("l", "../outside/file"), reg("l")))
	f.Add(archive(f, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "../outside/file"}))
	f.Add(archive(f, link("l", ".."), tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "l/outside/file"}))
	f.Add(archive(f, link("l", "../outside"), tar.Header{Name: "l/", Typeflag: tar.TypeDir, Mode: 0o777}))
	f.Add(archive(f, reg(strings.Repeat("long/", 50)+"x")))
	f.Add(archive(f, tar.Header{Name: "t", Typeflag: tar.TypeReg, ModTime: time.Unix(-1, 5e8), Format: tar.FormatPAX}))
	f.Add([]byte(strings.Repeat("\x80", 2048)))
	f.Fuzz(func(t *testing.T, data []byte) {
		root := t.TempDir()
		outside := filepath.Join(root, "outside")
		file := filepath.Join(outside, "file")
		if err := os.Mkdir(outside, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("safe"), 0o640); err != nil {
			t.Fatal(err)
		}
		before := state(t, root)
		_ = Unpack(filepath.Join(root, "in"), bytes.NewReader(data))
		if after := state(t, root); after != before {
			t.Errorf("outside changed:\n%s\n%s", before, after)
		}
		_ = os.Chmod(filepath.Join(root, "in"), 0o700)
	})
}

// state describes all of root but what is in "in".
func state(t *testing.T, root string) string {
	var s strings.Builder
	err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if path == filepath.Join(root, "in") {
			return filepath.SkipDir
		}
		s.WriteString(strings.TrimPrefix(path, root) + " " + info.Mode().String())
		if !info.IsDir() {
			b, _ := os.ReadFile(path)
			s.WriteString(" " + string(b) + " " + info.ModTime().String())
		}
		s.WriteString("\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s.String()
}

// TestHeaders: what is written is read back, by this package and by the standard library's.
func TestHeaders(t *testing.T) {
	long := strings.Repeat("n", 90) + "/" + strings.Repeat("m", 90)
	for _, m := range []member{
		{name: "a", kind: typeFile, mode: 0o644, uid: 1, gid: 2, size: 0, mtime: 1e9},
		{name: long, kind: typeSymlink, link: long, mode: 0o777, mtime: 1, nsec: 5e8},
		{name: long + "/", kind: typeDir, mode: 0o1777, uid: 1<<32 - 2, gid: 1 << 31},
		{name: "old", kind: typeFile, mtime: -2, nsec: 25e7},
		{name: "é\xff", kind: typeFIFO, mode: 0o600},
	} {
		b := m.appendHeader(nil)
		got, err := next(bytes.NewReader(b))
		if err != nil || *got != m {
			t.Errorf("%+v: %+v, %v", m, got, err)
		}
		h, err := tar.NewReader(bytes.NewReader(b)).Next()
		if err != nil || h.Name != m.name || h.Linkname != m.link || h.Typeflag != m.kind ||
			uint32(h.Mode) != m.mode || uint32(h.Uid) != m.uid || h.ModTime.UnixNano() != m.mtime*1e9+m.nsec {
			t.Errorf("%+v: %+v, %v", m, h, err)
		}
	}
	big := member{name: "big", kind: typeFile, size: 1 << 40}
	if got, err := next(bytes.NewReader(big.appendHeader(nil))); err != nil || *got != big {
		t.Errorf("%+v, %v", got, err)
	}
}
