package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/opendsec/dsec/internal/testkit"
)

// wheels are from PyPI, pinned; each is unpacked into the images that draw it.
var wheels = []string{
	"numpy==2.1.3", "scipy==1.14.1", "pandas==2.2.3", "matplotlib==3.9.2", "sympy==1.13.3", "django==5.1.3", "pillow==11.0.0",
	"networkx==3.4.2", "sqlalchemy==2.0.36", "lxml==5.3.0", "babel==2.16.0", "scikit-image==0.24.0",
}

// pythonPackages is where Debian's python3 looks.
const pythonPackages = "usr/local/lib/python3.11/dist-packages/"

// imageMaker makes images of a Debian tree and PyPI packages. No two begin alike, so that they share no chunks. It keeps
// the pieces of their archives, which are archives themselves, and compressed: an image is some of them in a row.
type imageMaker struct {
	debian string            // a tar
	wheels map[string]string // by name
	dir    string            // of pieces, <name>.tar.gz

	mu     sync.Mutex
	pieces map[string]piece
}

// piece is a part of images' archives.
type piece struct {
	path             string
	packed, unpacked int64 // bytes
}

// image is an archive of several members.
type image struct {
	pieces           []piece
	packed, unpacked int64
}

func newImageMaker(ctx context.Context, cache string) (*imageMaker, error) {
	m := &imageMaker{wheels: map[string]string{}, pieces: map[string]piece{}}
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
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, w := range wheels {
		name, version, _ := strings.Cut(w, "==")
		found := slices.IndexFunc(files, func(f os.DirEntry) bool {
			// Names of files may have other capitals, and _ for -.
			return strings.HasPrefix(strings.ReplaceAll(strings.ToLower(f.Name()), "_", "-"), name+"-"+version+"-")
		})
		if found < 0 {
			return nil, fmt.Errorf("%s: not among the wheels in %s", w, dir)
		}
		m.wheels[name] = filepath.Join(dir, files[found].Name())
	}
	m.dir, err = os.MkdirTemp(cache, "bench-pieces-")
	return m, err
}

func (m *imageMaker) close() { _ = os.RemoveAll(m.dir) }

// draw says which packages image i has: numpy and two others.
func (m *imageMaker) draw(i int) []string {
	names := []string{"numpy"}
	rng := rand.New(rand.NewPCG(uint64(i), 1))
	for len(names) < 3 {
		name, _, _ := strings.Cut(wheels[1+rng.IntN(len(wheels)-1)], "==")
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// image puts image i together.
func (m *imageMaker) image(i int) (*image, error) {
	// Contents lie in the order of names: this one, first and of another length in each image, moves all others.
	first := func(put func(string, []byte) error) error {
		data := make([]byte, (i%63+1)*4096)
		rng := rand.New(rand.NewPCG(uint64(i), 2))
		for n := range data {
			data[n] = byte(rng.Uint32())
		}
		return put("0-image", data)
	}
	out := &image{}
	p, err := m.piece(fmt.Sprintf("image-%d", i), first)
	for _, name := range append(m.draw(i), "debian") {
		if err != nil {
			return nil, err
		}
		out.add(p)
		p, err = m.part(name)
	}
	out.add(p)
	return out, err
}

func (i *image) add(p piece) {
	i.pieces = append(i.pieces, p)
	i.packed, i.unpacked = i.packed+p.packed, i.unpacked+p.unpacked
}

// part is a wheel, or the Debian tree: "debian".
func (m *imageMaker) part(name string) (piece, error) {
	if name == "debian" {
		return m.piece(name, nil)
	}
	return m.piece(name, func(put func(string, []byte) error) error { return m.unpack(put, m.wheels[name]) })
}

// piece makes a piece, unless it is there: of what fill puts, or the Debian tree.
func (m *imageMaker) piece(name string, fill func(put func(string, []byte) error) error) (piece, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.pieces[name]
	if ok {
		return p, nil
	}
	p = piece{path: filepath.Join(m.dir, name+".tar.gz")}
	f, err := os.Create(p.path)
	if err != nil {
		return p, err
	}
	defer f.Close()
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return p, err
	}
	c := &counter{w: z}
	if fill == nil {
		err = copyFile(c, m.debian)
	} else {
		// No end of the archive: another piece follows.
		tw := tar.NewWriter(c)
		err = fill(func(name string, data []byte) error {
			if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
				return err
			}
			_, err := tw.Write(data)
			return err
		})
		err = errors.Join(err, tw.Flush())
	}
	if err = errors.Join(err, z.Close()); err != nil {
		return p, err
	}
	st, err := f.Stat()
	if err != nil {
		return p, err
	}
	p.packed, p.unpacked = st.Size(), c.n
	m.pieces[name] = p
	return p, nil
}

func copyFile(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// open reads an image's archive, gzip of several members.
func (i *image) open() io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		for _, p := range i.pieces {
			if err := copyFile(w, p.path); err != nil {
				w.CloseWithError(err)
				return
			}
		}
		w.Close()
	}()
	return r
}

// ServeHTTP answers with the archive of the image whose number is the path.
func (m *imageMaker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.URL.Path)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	i, err := m.image(n)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(i.packed, 10))
	body := i.open()
	defer body.Close()
	_, _ = io.Copy(w, body)
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
