package tarstream_test

import (
	"archive/tar"
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opendsec/dsec/cmd/dsec/tarstream"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRoundTrip(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	must(t, os.MkdirAll(filepath.Join(src, "a/b"), 0o755))
	must(t, os.WriteFile(filepath.Join(src, "a/f"), bytes.Repeat([]byte{0, 255}, 50000), 0o640))
	must(t, os.Link(filepath.Join(src, "a/f"), filepath.Join(src, "a/g")))
	must(t, os.Symlink("../f", filepath.Join(src, "a/b/l")))
	must(t, os.Chmod(filepath.Join(src, "a/b"), 0o555))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(src, "a/b"), 0o755); _ = os.Chmod(filepath.Join(dst, "a/b"), 0o755) })
	must(t, os.WriteFile(filepath.Join(src, "n\xff\n"), nil, 0o600))

	var first, second bytes.Buffer
	must(t, tarstream.Write(&first, src, tarstream.Options{}))
	must(t, tarstream.Extract(bytes.NewReader(first.Bytes()), dst, nil))
	must(t, tarstream.Write(&second, dst, tarstream.Options{}))
	if a, b := list(t, &first), list(t, &second); a != b {
		t.Fatalf("the copy differs:\n%s\n---\n%s", a, b)
	}
}

func list(t *testing.T, r *bytes.Buffer) string {
	var out strings.Builder
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err != nil {
			return out.String()
		}
		if h.Name == "./" { // the two roots are temporary directories
			continue
		}
		out.WriteString(strings.Join([]string{h.Name, h.Linkname, string(h.Typeflag), h.FileInfo().Mode().String(), h.ModTime.String()}, "|") + "\n")
	}
}

// TestLeft: what is not copied is counted and named, both ways.
func TestLeft(t *testing.T) {
	src := t.TempDir()
	ln, err := net.Listen("unix", filepath.Join(src, "sock"))
	must(t, err)
	defer ln.Close()
	must(t, os.WriteFile(filepath.Join(src, "s"), nil, 0o755))
	must(t, os.Chmod(filepath.Join(src, "s"), 0o755|os.ModeSetuid))
	for _, n := range []string{"f1", "f2", "f3"} {
		must(t, syscall.Mkfifo(filepath.Join(src, n), 0o600))
	}
	var b bytes.Buffer
	var there, back tarstream.Left
	must(t, tarstream.Write(&b, src, tarstream.Options{Left: &there}))
	if got := there.String(); got != `1 left out: "sock" (a socket)` {
		t.Error(got)
	}
	must(t, tarstream.Extract(&b, t.TempDir(), &back))
	if got := back.String(); got != `4 left out: "f1" (a fifo), "f2" (a fifo), "f3" (a fifo), ...` {
		t.Error(got)
	}
	if got := new(tarstream.Left).String(); got != "" {
		t.Error(got)
	}
}

// TestHostile unpacks archives that try to write outside.
func TestHostile(t *testing.T) {
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	must(t, os.WriteFile(victim, []byte("untouched"), 0o600))
	for name, entries := range map[string][]tar.Header{
		"dots":               {{Name: "../../../../../../../../" + victim, Typeflag: tar.TypeReg}},
		"absolute":           {{Name: victim, Typeflag: tar.TypeReg}},
		"through a link":     {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "l/victim", Typeflag: tar.TypeReg}},
		"over a link":        {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: victim}, {Name: "l", Typeflag: tar.TypeReg}},
		"hard link":          {{Name: "l", Typeflag: tar.TypeLink, Linkname: victim}, {Name: "l", Typeflag: tar.TypeReg}},
		"directory and link": {{Name: "d", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "d/", Typeflag: tar.TypeDir, Mode: 0o777}, {Name: "d/victim", Typeflag: tar.TypeReg}},
	} {
		t.Run(name, func(t *testing.T) {
			var buf bytes.Buffer
			w := tar.NewWriter(&buf)
			for _, h := range entries {
				body := ""
				if h.Typeflag == tar.TypeReg {
					body = "changed"
				}
				h.Size = int64(len(body))
				must(t, w.WriteHeader(&h))
				_, err := w.Write([]byte(body))
				must(t, err)
			}
			must(t, w.Close())
			err := tarstream.Extract(&buf, t.TempDir(), nil)
			got, rerr := os.ReadFile(victim)
			must(t, rerr)
			if string(got) != "untouched" {
				t.Fatalf("written outside (%v)", err)
			}
		})
	}
}
