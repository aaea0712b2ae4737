package build

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/sandbox"
)

// maxContext bounds what an archive of a context may unpack to, bytes.
const maxContext = 4 << 30

// UnpackContext unpacks the archive of a context (tar, plain or compressed with gzip or zstd) into a new directory, which it
// does not leave wherever names and links lead: files, directories and links, nothing else. Errors: sandbox.ErrInvalid,
// sandbox.ErrExhausted, sandbox.ErrUnavailable for an archive that is cut off.
func UnpackContext(ctx context.Context, r io.Reader, dir string) error {
	plain, err := tree.Decompress(r)
	if err != nil {
		return err
	}
	defer plain.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	t := tar.NewReader(plain)
	left := int64(maxContext)
	for n := 0; ; n++ {
		h, err := t.Next()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return contextError("", err)
		}
		if left -= h.Size; n >= maxContextFiles || h.Size < 0 || left < 0 {
			return fmt.Errorf("build context: %w: it unpacks to more than %d files or %d GiB", sandbox.ErrExhausted, maxContextFiles, maxContext>>30)
		}
		if err := unpackEntry(root, h, t); err != nil {
			return contextError(h.Name, err)
		}
	}
}

// contextError says of which entry it is. What is the disk's trouble or the connection's is not the archive's.
func contextError(name string, err error) error {
	if name != "" {
		err = fmt.Errorf("%.200q: %w", name, err)
	}
	for _, kind := range []error{sandbox.ErrUnavailable, sandbox.ErrDeadline, sandbox.ErrInvalid} {
		if errors.Is(err, kind) {
			return fmt.Errorf("build context: %w", err)
		}
	}
	return fmt.Errorf("build context: %w: %w", sandbox.ErrInvalid, err)
}

func unpackEntry(root *os.Root, h *tar.Header, r io.Reader) error {
	name := strings.TrimPrefix(path.Join("/", h.Name), "/")
	if name == "" {
		return nil
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode) & 0o777
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(name, 0o755); err != nil {
			return err
		}
		return root.Chmod(name, mode|0o700)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%w: the archive has it twice", sandbox.ErrInvalid)
		}
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Chmod(mode), f.Close())
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return root.Link(strings.TrimPrefix(path.Join("/", h.Linkname), "/"), name)
	case tar.TypeXGlobalHeader:
		return nil
	}
	return fmt.Errorf("%w: neither file, directory nor link", sandbox.ErrInvalid)
}
