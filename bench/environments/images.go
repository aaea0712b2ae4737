package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opendsec/dsec/internal/testkit"
)

// wheels are from PyPI, pinned; each is unpacked into the images that draw it.
var wheels = []string{
	"numpy==2.1.3", "scipy==1.14.1", "pandas==2.2.3", "matplotlib==3.9.2", "sympy==1.13.3", "django==5.1.3", "pillow==11.0.0",
	"networkx==3.4.2", "sqlalchemy==2.0.36", "lxml==5.3.0", "babel==2.16.0", "scikit-image==0.24.0",
}

// pythonPackages is where Debian's python3 looks.
const pythonPackages = "usr/local/lib/python3.11/dist-packages/"

// imageMaker makes images of a Debian tree and PyPI packages. No two begin alike, so that they share no chunks.
type imageMaker struct {
	debian string            // a tar
	wheels map[string]string // by name
}

func newImageMaker(ctx context.Context, cache string) (*imageMaker, error) {
	m := &imageMaker{wheels: map[string]string{}}
	var err error
	if m.debian, err = testkit.DebianBase(ctx); err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "bench-wheels")
	args := append([]string{"-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--python-version", "3.11",
		"--implementation", "cp", "--abi", "cp311", "--abi", "abi3", "--abi", "none", "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_17_x86_64",
		"--platform", "manylinux_2_28_x86_64", "--platform", "any", "-d", dir}, wheels...)
	if out, err := exec.CommandContext(ctx, "python3", args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pip download: %w\n%s", err, out)
	}
	for _, w := range wheels {
		name, version, _ := strings.Cut(w, "==")
		found, err := filepath.Glob(filepath.Join(dir, strings.ReplaceAll(name, "-", "?")+"-"+version+"-*.whl"))
		if err == nil && len(found) == 0 {
			upper, _ := filepath.Glob(filepath.Join(dir, strings.ToUpper(name[:1])+strings.ReplaceAll(name[1:], "-", "?")+"-"+version+"-*.whl"))
			found = upper
		}
		if err != nil || len(found) == 0 {
			return nil, fmt.Errorf("%s: not among the wheels in %s", w, dir)
		}
		m.wheels[name] = found[0]
	}
	return m, nil
}

// draw says which packages image i has: numpy, scipy, and two others.
func (m *imageMaker) draw(i int) []string {
	names := []string{"numpy", "scipy"}
	rng := rand.New(rand.NewPCG(uint64(i), 1))
	for len(names) < 4 {
		name, _, _ := strings.Cut(wheels[2+rng.IntN(len(wheels)-2)], "==")
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// write writes image i as a tar.
func (m *imageMaker) write(w io.Writer, i int) error {
	tw := tar.NewWriter(w)
	put := func(name string, data []byte) error {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err := tw.Write(data)
		return err
	}
	// Contents lie in the order of names: this one, first and of another length in each image, moves all others.
	first := make([]byte, (i%63+1)*4096)
	rng := rand.New(rand.NewPCG(uint64(i), 2))
	for n := range first {
		first[n] = byte(rng.Uint32())
	}
	if err := put("0-image", first); err != nil {
		return err
	}
	for _, name := range m.draw(i) {
		if err := m.unpack(put, m.wheels[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	f, err := os.Open(m.debian)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

func (m *imageMaker) unpack(put func(string, []byte) error, wheel string) error {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return err
	}
	defer z.Close()
	for _, f := range z.File {
		if f.FileInfo().IsDir() || strings.Contains(f.Name, ".data/") {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return err
		}
		data, err := io.ReadAll(io.LimitReader(r, 256<<20))
		r.Close()
		if err != nil {
			return err
		}
		if err := put(pythonPackages+f.Name, data); err != nil {
			return err
		}
	}
	return nil
}

// gzipped writes an image as registries keep it, and returns its unpacked size.
func (m *imageMaker) gzipped(path string, i int) (int64, error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return 0, err
	}
	c := &counter{w: z}
	if err := m.write(c, i); err != nil {
		return 0, err
	}
	if err := z.Close(); err != nil {
		return 0, err
	}
	return c.n, f.Close()
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// smallImage is a tar of little more than a shell, beside files of random data of size bytes in all.
func smallImage(debian string, files, size int) ([]byte, error) {
	f, err := os.Open(debian)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	rng := rand.New(rand.NewPCG(uint64(files), uint64(size)))
	each := size / max(files, 1)
	data := make([]byte, each)
	for n := range files {
		for k := 0; k+8 <= len(data); k += 8 {
			v := rng.Uint64()
			for b := range 8 {
				data[k+b] = byte(v >> (8 * b))
			}
		}
		if err := tw.WriteHeader(&tar.Header{Name: fmt.Sprintf("data/%03d/%06d", n/200, n), Mode: 0o644, Size: int64(len(data))}); err != nil {
			return nil, err
		}
		if _, err := tw.Write(data); err != nil {
			return nil, err
		}
	}
	tr := tar.NewReader(f)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return buf.Bytes(), tw.Close()
		}
		if err != nil {
			return nil, err
		}
		name := strings.TrimPrefix(strings.TrimSuffix(h.Name, "/"), "./")
		base := filepath.Base(name)
		top := !strings.Contains(name, "/") && (h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeDir)
		lib := strings.HasPrefix(base, "libc.so.") || strings.HasPrefix(base, "ld-linux") || strings.HasPrefix(base, "libc-") || strings.HasPrefix(base, "ld-")
		if !top && !(lib && h.Typeflag != tar.TypeDir) && name != "usr/bin/true" && name != "etc/passwd" && name != "usr/bin/dash" && name != "usr/bin/sh" {
			continue
		}
		if err := tw.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return nil, err
		}
	}
}
