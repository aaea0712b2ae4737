package disk_test

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/layer/disk"
	"github.com/opendsec/dsec/sandbox"
)

// qemuImg runs the program of QEMU, which the package must agree with, or skips the test.
func qemuImg(t *testing.T, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("qemu-img is not installed (apt-get install qemu-utils)")
	}
	out, err := exec.Command("qemu-img", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("qemu-img %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// sample is a disk with data, repetition and holes; its size is no multiple of a cluster.
func sample(t *testing.T) (path string, data []byte) {
	t.Helper()
	data = make([]byte, 5<<20+512*3)
	if _, err := rand.Read(data[64<<10 : 300<<10]); err != nil {
		t.Fatal(err)
	}
	copy(data[3<<20:], strings.Repeat("some text that packs well. ", 20_000))
	copy(data[len(data)-9:], "the end!\n")
	path = filepath.Join(t.TempDir(), "disk.raw")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, data
}

func open(t *testing.T, path string) (*disk.Image, error) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return disk.Open(f, st.Size())
}

// TestContent: what QEMU writes as qcow2, in every form that is taken, reads as what went in.
func TestContent(t *testing.T) {
	raw, data := sample(t)
	for name, opts := range map[string][]string{
		"plain": {"-O", "qcow2"}, "v2": {"-O", "qcow2", "-o", "compat=0.10"}, "small clusters": {"-O", "qcow2", "-o", "cluster_size=512"},
		"large clusters": {"-O", "qcow2", "-o", "cluster_size=2M"}, "zlib": {"-c", "-O", "qcow2"},
		"zstd": {"-c", "-O", "qcow2", "-o", "compression_type=zstd"}, "raw": {"-O", "raw"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "image")
			qemuImg(t, append(append([]string{"convert", "-f", "raw"}, opts...), raw, path)...)
			img, err := open(t, path)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(img.Content())
			if err != nil || img.Size != int64(len(data)) || !bytes.Equal(got, data) {
				t.Errorf("%s of %d bytes; read %d, %v, equal %v", img.Format, img.Size, len(got), err, bytes.Equal(got, data))
			}
		})
	}
}

// TestRefused: what refers to other files, lies or is cut off is refused with a kind and a reason.
func TestRefused(t *testing.T) {
	raw, _ := sample(t)
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	qemuImg(t, "convert", "-f", "raw", "-O", "qcow2", raw, whole)
	good, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	backed := filepath.Join(dir, "backed")
	qemuImg(t, "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "/etc/passwd", backed, "1M")
	external := filepath.Join(dir, "external")
	qemuImg(t, "create", "-q", "-f", "qcow2", "-o", "data_file="+filepath.Join(dir, "data"), external, "1M")
	locked := filepath.Join(dir, "locked")
	qemuImg(t, "create", "-q", "-f", "qcow2", "--object", "secret,id=s,data=x", "-o", "encrypt.format=luks,encrypt.key-secret=s", locked, "1M")
	extended := filepath.Join(dir, "extended")
	qemuImg(t, "create", "-q", "-f", "qcow2", "-o", "extended_l2=on", extended, "1M")
	with := func(change func(b []byte) []byte) string {
		path := filepath.Join(t.TempDir(), "changed")
		if err := os.WriteFile(path, change(bytes.Clone(good)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	put := func(at int, v uint64) string {
		return with(func(b []byte) []byte { binary.BigEndian.PutUint64(b[at:], v); return b })
	}
	for name, c := range map[string]struct {
		path string
		kind error
		want string
	}{
		"a backing file":   {backed, sandbox.ErrInvalid, "backing file"},
		"an external file": {external, sandbox.ErrInvalid, "another file"},
		"encryption":       {locked, sandbox.ErrInvalid, "encrypted"},
		"extended L2":      {extended, sandbox.ErrUnsupported, "features"},
		"corrupt":          {put(72, 2), sandbox.ErrInvalid, "corrupt"},
		"unknown features": {put(72, 1<<40), sandbox.ErrUnsupported, "features"},
		"a lying size":     {put(24, 200<<30), sandbox.ErrInvalid, "tables are for"},
		"a gigantic size":  {put(24, 1<<60), sandbox.ErrExhausted, "larger than"},
		"an odd size":      {put(24, 1000), sandbox.ErrInvalid, "sectors"},
		"no first table":   {put(40, 1<<50), sandbox.ErrInvalid, "first table"},
		"unaligned table":  {put(40, 77), sandbox.ErrInvalid, "first table"},
		"a short header":   {with(func(b []byte) []byte { return b[:50] }), sandbox.ErrInvalid, "header"},
		"cut off":          {with(func(b []byte) []byte { return b[:len(b)/2] }), sandbox.ErrInvalid, "cut off"},
		"version 1":        {with(func(b []byte) []byte { b[7] = 1; return b }), sandbox.ErrUnsupported, "version 1"},
		"huge clusters":    {with(func(b []byte) []byte { b[23] = 40; return b }), sandbox.ErrInvalid, "2^40"},
		"VMDK":             {with(func([]byte) []byte { return append([]byte("KDMV"), make([]byte, 1020)...) }), sandbox.ErrUnsupported, "VMDK"},
		"LUKS":             {with(func([]byte) []byte { return append([]byte("LUKS\xba\xbe"), make([]byte, 1018)...) }), sandbox.ErrUnsupported, "LUKS"},
		"half a sector":    {with(func([]byte) []byte { return make([]byte, 700) }), sandbox.ErrInvalid, "cut off"},
		"nothing":          {with(func([]byte) []byte { return nil }), sandbox.ErrInvalid, "no disk image"},
	} {
		t.Run(name, func(t *testing.T) {
			img, err := open(t, c.path)
			if err == nil {
				_, err = io.Copy(io.Discard, img.Content())
			}
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %v that says %q", err, c.kind, c.want)
			}
		})
	}
}

// TestOverlay: QEMU takes the empty file for an image of the size, without errors.
func TestOverlay(t *testing.T) {
	for _, size := range []int64{512, 1 << 20, 10 << 30, disk.MaxSize} {
		path := filepath.Join(t.TempDir(), "overlay")
		if err := disk.NewOverlay(path, size); err != nil {
			t.Fatal(err)
		}
		qemuImg(t, "check", "-f", "qcow2", path)
		img, err := open(t, path)
		if err != nil || img.Size != size {
			t.Errorf("%d bytes: %+v, %v", size, img, err)
		}
	}
}

// FuzzOpen: whatever the bytes, reading ends with the disk's size or an error.
func FuzzOpen(f *testing.F) {
	dir := f.TempDir()
	if err := disk.NewOverlay(filepath.Join(dir, "o"), 1<<20); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "o"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[:1024])
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		img, err := disk.Open(bytes.NewReader(b), int64(len(b)))
		if err != nil || img.Size > 1<<24 {
			return
		}
		if n, err := io.Copy(io.Discard, img.Content()); err == nil && n != img.Size {
			t.Errorf("%d bytes of %d", n, img.Size)
		}
	})
}
