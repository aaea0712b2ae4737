package oci

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/opendsec/dsec/sandbox"
)

// files is where a layout or archive keeps its files.
type files interface {
	// openFile opens by name below the top. Error: fs.ErrNotExist.
	openFile(name string) (io.ReadCloser, error)
}

// OpenLayout opens the OCI image layout in a directory. The returned function releases it.
func OpenLayout(ctx context.Context, dir string, p Platform) (*Image, func() error, error) {
	root, err := os.OpenRoot(dir) // symbolic links in it must not lead elsewhere
	if err != nil {
		return nil, nil, fmt.Errorf("image layout: %w: %w", sandbox.ErrInvalid, err)
	}
	img, err := openFiles(ctx, rootFiles{root}, p)
	if err != nil {
		root.Close()
		return nil, nil, fmt.Errorf("image layout %s: %w", dir, err)
	}
	return img, root.Close, nil
}

// OpenArchive opens an image in an uncompressed tar: an OCI layout or what `docker save` writes. r must stay
// open while the image is in use.
func OpenArchive(ctx context.Context, r io.ReaderAt, size int64, p Platform) (*Image, error) {
	index, err := indexTar(ctx, r, size)
	if err != nil {
		return nil, fmt.Errorf("image archive: %w", err)
	}
	img, err := openFiles(ctx, index, p)
	if err != nil {
		return nil, fmt.Errorf("image archive: %w", err)
	}
	return img, nil
}

func openFiles(ctx context.Context, f files, p Platform) (*Image, error) {
	if p == (Platform{}) {
		p = DefaultPlatform
	}
	raw, err := readFile(f, "index.json")
	if err == nil {
		return resolve(ctx, fileSource{f}, raw, "", v1.Hash{}, p)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	raw, err = readFile(f, "manifest.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: neither index.json (OCI layout) nor manifest.json (docker save) is in it; an archive of a file system itself is a layer: dsec layer import --base NAME FILE", sandbox.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	return dockerSave(f, raw, p)
}

// dockerSave reads the older form of `docker save`, which names layers by path and not by digest.
func dockerSave(f files, raw []byte, p Platform) (*Image, error) {
	var images []struct {
		Config string
		Layers []string
	}
	if err := json.Unmarshal(raw, &images); err != nil {
		return nil, fmt.Errorf("%w: manifest.json: %w", sandbox.ErrInvalid, err)
	}
	if len(images) != 1 {
		return nil, fmt.Errorf("%w: it holds %d images; save one", sandbox.ErrInvalid, len(images))
	}
	rawConfig, err := readFile(f, images[0].Config)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	if err != nil {
		return nil, fmt.Errorf("image configuration: %w", err)
	}
	img := &Image{source: fileSource{f}}
	c, err := img.readConfig(rawConfig, p)
	if err != nil {
		return nil, err
	}
	if len(c.RootFS.DiffIDs) != len(images[0].Layers) || len(c.RootFS.DiffIDs) > maxLayers {
		return nil, fmt.Errorf("%w: %d layers, but digests for %d", sandbox.ErrInvalid, len(images[0].Layers), len(c.RootFS.DiffIDs))
	}
	for n, name := range images[0].Layers {
		img.layers = append(img.layers, blob{digest: c.RootFS.DiffIDs[n], size: -1, path: name, plain: true})
	}
	return img, nil
}

func readFile(f files, name string) ([]byte, error) {
	r, err := f.openFile(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxDocument {
		return nil, fmt.Errorf("%w: %s has more than %d bytes", sandbox.ErrInvalid, name, maxDocument)
	}
	return b, nil
}

// fileSource finds blobs where an OCI layout has them.
type fileSource struct{ files files }

func (s fileSource) open(_ context.Context, b blob) (io.ReadCloser, error) {
	name := b.path
	if name == "" {
		if b.digest.Algorithm != "sha256" {
			return nil, fmt.Errorf("%w: digest %s is not of sha256", sandbox.ErrUnsupported, b.digest)
		}
		name = path.Join("blobs", b.digest.Algorithm, b.digest.Hex)
	}
	r, err := s.files.openFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: the image names %s, which is not in it", sandbox.ErrInvalid, name)
	}
	return r, err
}

type rootFiles struct{ root *os.Root }

func (r rootFiles) openFile(name string) (io.ReadCloser, error) { return r.root.Open(name) }

// tarFiles knows where in an archive each file lies.
type tarFiles struct {
	r     io.ReaderAt
	files map[string]section
	links map[string]string // old archives link to equal layers
}

type section struct{ at, size int64 }

const maxArchiveFiles = 1 << 16

func indexTar(ctx context.Context, r io.ReaderAt, size int64) (*tarFiles, error) {
	t := &tarFiles{r: r, files: map[string]section{}, links: map[string]string{}}
	sr := io.NewSectionReader(r, 0, size)
	tr := tar.NewReader(sr)
	for {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		h, err := tr.Next()
		if err == io.EOF {
			return t, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: not a complete tar: %w", sandbox.ErrInvalid, err)
		}
		name := path.Clean("/" + h.Name)[1:]
		switch h.Typeflag {
		case tar.TypeReg:
			at, err := sr.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			if h.PAXRecords["GNU.sparse.major"] != "" || h.Size > size-at {
				return nil, fmt.Errorf("%w: %.200q is sparse or cut off", sandbox.ErrInvalid, h.Name)
			}
			t.files[name] = section{at, h.Size}
		case tar.TypeSymlink:
			t.links[name] = path.Join("/", path.Dir(name), h.Linkname)[1:]
		case tar.TypeLink:
			t.links[name] = path.Clean("/" + h.Linkname)[1:]
		}
		if len(t.files)+len(t.links) > maxArchiveFiles {
			return nil, fmt.Errorf("%w: more than %d files in an image archive", sandbox.ErrInvalid, maxArchiveFiles)
		}
	}
}

func (t *tarFiles) openFile(name string) (io.ReadCloser, error) {
	name = path.Clean("/" + name)[1:]
	for range 8 {
		if s, ok := t.files[name]; ok {
			return io.NopCloser(io.NewSectionReader(t.r, s.at, s.size)), nil
		}
		to, ok := t.links[name]
		if !ok {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		name = to
	}
	return nil, fmt.Errorf("%w: links of %.200q lead in a circle", sandbox.ErrInvalid, name)
}
