package build_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/build"
	"github.com/opendsec/dsec/sandbox"
)

func archive(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		body := []byte(nil)
		if h.Typeflag == tar.TypeReg {
			body = []byte("text")
			h.Size = int64(len(body))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func packed(t *testing.T, b []byte) []byte {
	t.Helper()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return z.Bytes()
}

// The archive of a context is somebody else's: nothing of it lands, or is read, outside its directory.
func TestUnpackContext(t *testing.T) {
	file := tar.Header{Name: "sub/a", Typeflag: tar.TypeReg, Mode: 0o755}
	whole := archive(t, tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: "sub", Typeflag: tar.TypeDir, Mode: 0o555}, file,
		tar.Header{Name: "../../up", Typeflag: tar.TypeReg}, tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "sub/a"},
		tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"})
	for name, text := range map[string][]byte{"plain": whole, "gzip": packed(t, whole)} {
		dir := filepath.Join(t.TempDir(), "in")
		if err := errors.Join(os.Mkdir(dir, 0o700), build.UnpackContext(t.Context(), bytes.NewReader(text), dir)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for path, mode := range map[string]os.FileMode{"sub/a": 0o755, "hard": 0o755, "up": 0o644} {
			if st, err := os.Stat(filepath.Join(dir, path)); err != nil || st.Mode().Perm() != mode {
				t.Errorf("%s: %s: %v, %v", name, path, st, err)
			}
		}
		if above, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(above) != 1 {
			t.Errorf("%s: beside its directory: %v, %v", name, above, err)
		}
		c, err := build.OpenContext(dir)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := c.ReadFile("link"); err == nil {
			t.Errorf("%s: a link led outside: %.40q", name, b)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	broken := packed(t, whole)
	broken[len(broken)/2] ^= 0x55
	for name, bad := range map[string]struct {
		text []byte
		kind error
		says string
	}{
		"empty":              {nil, sandbox.ErrInvalid, "it is empty"},
		"no archive":         {[]byte(strings.Repeat("x", 2000)), sandbox.ErrInvalid, ""},
		"cut":                {whole[:700], sandbox.ErrInvalid, ""},
		"damaged gzip":       {broken, sandbox.ErrInvalid, ""},
		"xz":                 {[]byte("\xfd7zXZ\x00 and so on"), sandbox.ErrInvalid, "use gzip or zstd"},
		"through a link":     {archive(t, tar.Header{Name: "d", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, tar.Header{Name: "d/x", Typeflag: tar.TypeReg}), sandbox.ErrInvalid, `"d/x"`},
		"hard link outside":  {archive(t, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "../../../etc/passwd"}), sandbox.ErrInvalid, `"h"`},
		"device":             {archive(t, tar.Header{Name: "dev", Typeflag: tar.TypeChar}), sandbox.ErrInvalid, "neither file, directory nor link"},
		"twice":              {archive(t, file, file), sandbox.ErrInvalid, "the archive has it twice"},
		"larger than bounds": {bomb(t), sandbox.ErrExhausted, "it unpacks to more than"},
	} {
		dir := t.TempDir()
		err := build.UnpackContext(t.Context(), bytes.NewReader(bad.text), dir)
		if !errors.Is(err, bad.kind) || !strings.Contains(err.Error(), bad.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// bomb says that it is large, and is refused before it is.
func bomb(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeReg, Mode: 0o644, Size: 5 << 30}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
