package tree

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/opendsec/dsec/layer/erofs"
)

// Form says how an archive's names are read.
type Form int

// The forms.
const (
	Plain Form = iota // names are names
	OCI               // ".wh.NAME" removes NAME of earlier layers, ".wh..wh..opq" all that they have in its directory
)

const (
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh."
	whiteoutOpaque = ".wh..wh..opq"
	paxXattr       = "SCHILY.xattr."
)

// AddTar reads a tar, plain or compressed with gzip or zstd, to its end. Errors: sandbox.ErrInvalid for what
// the archive may not hold or when it is damaged, sandbox.ErrExhausted beyond the limits, or the reader's.
func (b *Builder) AddTar(ctx context.Context, r io.Reader, form Form) error {
	plain, err := Decompress(r)
	if err != nil {
		return err
	}
	defer plain.Close()
	// Everything that decompresses counts, so that padding and headers cannot be a bomb either.
	limit := b.opts.Limits.Bytes + b.opts.Limits.MetaBytes + 2048*b.opts.Limits.Entries
	counted := &countReader{ctx: ctx, r: plain, left: limit - b.stream, limit: limit}
	defer func() { b.stream = limit - counted.left }()
	tr := tar.NewReader(counted)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return tarError("read archive", err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := b.addHeader(ctx, h, tr, form); err != nil {
			return tarError(fmt.Sprintf("archive entry %.200q", h.Name), err)
		}
	}
	// To the end: what verifies the stream does so there.
	if _, err := io.Copy(io.Discard, counted); err != nil {
		return tarError("read archive", err)
	}
	return nil
}

// tarError gives a damaged archive its kind.
func tarError(what string, err error) error {
	switch {
	case errors.Is(err, tar.ErrHeader), errors.Is(err, io.ErrUnexpectedEOF), isDamage(err), errors.Is(err, tar.ErrFieldTooLong):
		return fmt.Errorf("%s: %w: not a complete tar: %w", what, errInvalid, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (b *Builder) addHeader(ctx context.Context, h *tar.Header, content io.Reader, form Form) error {
	if err := canceled(ctx); err != nil {
		return err
	}
	parts, err := splitName(h.Name)
	if err != nil {
		return err
	}
	if form == OCI && len(parts) > 0 && strings.HasPrefix(parts[len(parts)-1], whiteoutPrefix) {
		if err := b.count(h.Name, nil); err != nil {
			return err
		}
		return b.whiteout(parts)
	}
	if h.Typeflag == tar.TypeLink {
		if err := b.count(h.Name, nil); err != nil {
			return err
		}
		return b.link(parts, h.Linkname)
	}
	i, err := b.tarInode(h)
	if err != nil {
		return err
	}
	if err := b.count(h.Name, i); err != nil {
		return err
	}
	switch i.Mode & erofs.TypeMask {
	case erofs.TypeChar, erofs.TypeBlock:
		if keep, err := b.device(i); !keep {
			return err
		}
	case erofs.TypeRegular:
		i.Size = h.Size
		if err := b.countBytes(i.Size); err != nil {
			return err
		}
		if i.Extents, err = b.spool.add(ctx, content, i.Size); err != nil {
			return err
		}
	}
	return b.place(parts, i)
}

// tarInode translates a header, all but the content.
func (b *Builder) tarInode(h *tar.Header) (*erofs.Inode, error) {
	i := &erofs.Inode{Mode: uint32(h.Mode) & 0o7777, Mtime: h.ModTime.Unix(), MtimeNsec: uint32(h.ModTime.Nanosecond())}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= math.MaxUint32 || int64(h.Gid) >= math.MaxUint32 {
		return nil, fmt.Errorf("%w: owner %d:%d is not a user id", errInvalid, h.Uid, h.Gid)
	}
	i.UID, i.GID = uint32(h.Uid), uint32(h.Gid)
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		i.Mode |= erofs.TypeRegular
	case tar.TypeDir:
		i.Mode |= erofs.TypeDir
	case tar.TypeSymlink:
		i.Mode |= erofs.TypeSymlink
		i.Target = h.Linkname
		if len(i.Target) == 0 || len(i.Target) > erofs.MaxTargetLen {
			return nil, fmt.Errorf("%w: symbolic link to a name of %d bytes, 1 to %d are allowed", errInvalid, len(i.Target), erofs.MaxTargetLen)
		}
	case tar.TypeFifo:
		i.Mode |= erofs.TypeFifo
	case tar.TypeChar, tar.TypeBlock:
		i.Mode |= erofs.TypeChar
		if h.Typeflag == tar.TypeBlock {
			i.Mode = i.Mode&^erofs.TypeMask | erofs.TypeBlock
		}
		if h.Devmajor < 0 || h.Devmajor >= 1<<12 || h.Devminor < 0 || h.Devminor >= 1<<20 {
			return nil, fmt.Errorf("%w: device number %d:%d", errInvalid, h.Devmajor, h.Devminor)
		}
		i.Major, i.Minor = uint32(h.Devmajor), uint32(h.Devminor)
	default:
		return nil, fmt.Errorf("%w: entries of type %q are not supported", errInvalid, h.Typeflag)
	}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, paxXattr); ok {
			b.xattrs(i, name, value)
		}
	}
	slices.SortFunc(i.Xattrs, func(a, b erofs.Xattr) int { return strings.Compare(a.Name, b.Name) })
	return i, imageError(erofs.CheckXattrs(i.Xattrs))
}

// link makes another name for what is there already.
func (b *Builder) link(parts []string, to string) error {
	target, err := splitName(to)
	if err != nil {
		return fmt.Errorf("hard link to %.200q: %w", to, err)
	}
	inode, err := b.find(target)
	if err != nil {
		return fmt.Errorf("hard link to %.200q: %w", to, err)
	}
	if inode == nil {
		return fmt.Errorf("hard link to %.200q: %w: no earlier entry has that name", to, errInvalid)
	}
	if inode.IsDir() {
		return fmt.Errorf("hard link to %.200q: %w: it is a directory", to, errInvalid)
	}
	return b.place(parts, inode)
}

// whiteout applies an entry whose last component begins with ".wh.".
func (b *Builder) whiteout(parts []string) error {
	base := parts[len(parts)-1]
	dir, err := b.model.lookup(b.top, parts[:len(parts)-1], false)
	if err != nil || dir == nil {
		return err
	}
	switch name := strings.TrimPrefix(base, whiteoutPrefix); {
	case base == whiteoutOpaque:
		b.model.opaque(dir)
	case strings.HasPrefix(base, whiteoutMeta): // bookkeeping of aufs
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("%w: a whiteout of nothing", errInvalid)
	default:
		b.model.whiteout(dir, name)
	}
	return nil
}

// countReader ends a stream that is too long, or no longer wanted.
type countReader struct {
	ctx   context.Context
	r     io.Reader
	left  int64
	limit int64
}

func (c *countReader) Read(p []byte) (int, error) {
	if err := canceled(c.ctx); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	if c.left -= int64(n); c.left < 0 {
		return 0, fmt.Errorf("%w: it decompresses to more than %d MiB", errExhausted, c.limit>>20)
	}
	return n, err
}
