package aether

import (
	"context"
	"io"

	"github.com/opendsec/dsec/guest/wire"
)

// Files. user "" = the sandbox's default user. Relative paths start at the sandbox's working directory.

func (c *Conn) path(ctx context.Context, kind wire.Kind, m *wire.Path) ([]byte, error) {
	if len(m.Path) > wire.MaxPath || len(m.To) > wire.MaxPath {
		return nil, &wire.Error{Code: wire.CodeInvalid, Message: "the path is too long"}
	}
	return c.call(ctx, kind, m.Append, nil)
}

// withAttrs asks for attributes.
func withAttrs(yes bool) uint32 {
	if yes {
		return 1
	}
	return 0
}

// Stat describes a file, on request with its attributes. Files of /proc have no Target.
func (c *Conn) Stat(ctx context.Context, path, user string, follow, attrs bool) (wire.FileInfo, error) {
	var info wire.FileInfo
	p, err := c.path(ctx, wire.KindStat, &wire.Path{Path: path, User: user, Follow: follow, Mode: withAttrs(attrs)})
	if err != nil {
		return info, err
	}
	return info, info.Decode(p)
}

// ListDir lists at most max entries down to depth (1 = the directory's own); truncated tells that there were
// more. The names are relative to path. A reply is at most 1 MiB.
func (c *Conn) ListDir(ctx context.Context, path, user string, depth, max int, attrs bool) (files []wire.FileInfo, truncated bool, err error) {
	p, err := c.path(ctx, wire.KindListDir, &wire.Path{Path: path, User: user, Depth: int32(depth), Max: int32(max), Mode: withAttrs(attrs)})
	if err != nil {
		return nil, false, err
	}
	return wire.DecodeFiles(p)
}

// Mkdir makes a directory. With parents, missing ones are made and an existing directory is no error.
func (c *Conn) Mkdir(ctx context.Context, path, user string, parents bool, mode uint32) error {
	_, err := c.path(ctx, wire.KindMkdir, &wire.Path{Path: path, User: user, Follow: parents, Mode: mode})
	return err
}

// Rename moves a file within one file system, over an existing one.
func (c *Conn) Rename(ctx context.Context, from, to, user string) error {
	_, err := c.path(ctx, wire.KindRename, &wire.Path{Path: from, To: to, User: user})
	return err
}

// Remove removes a file or an empty directory; recursive, a tree. With force, a missing one is no error.
func (c *Conn) Remove(ctx context.Context, path, user string, recursive, force bool) error {
	_, err := c.path(ctx, wire.KindRemove, &wire.Path{Path: path, User: user, Follow: recursive, Force: force})
	return err
}

// OpenRead streams a regular file from offset, at most length bytes (length < 0 = to the end). info is the
// file's.
func (c *Conn) OpenRead(ctx context.Context, path, user string, offset, length int64) (r io.ReadCloser, info wire.FileInfo, err error) {
	m := wire.Path{Path: path, User: user, Offset: offset, Length: length}
	s, p, err := c.open(ctx, wire.KindOpenRead, m.Append, true)
	if err != nil {
		return nil, info, err
	}
	if err := info.Decode(p); err != nil {
		s.reset(err)
		return nil, info, err
	}
	return reader{s}, info, nil
}

// OpenWrite writes a file atomically (temporary file beside it, then rename).
func (c *Conn) OpenWrite(ctx context.Context, o *wire.OpenWrite) (Writer, error) {
	s, _, err := c.open(ctx, wire.KindOpenWrite, o.Append, true)
	if err != nil {
		return nil, err
	}
	return fileWriter{s}, nil
}

// OpenTar streams a tar of the tree at path; Unpack takes a tar and unpacks it beneath path (files of the
// archive never leave it: absolute names, "..", and symbolic links on the way are refused or confined).
func (c *Conn) OpenTar(ctx context.Context, path, user string) (io.ReadCloser, error) {
	m := wire.Path{Path: path, User: user}
	s, _, err := c.open(ctx, wire.KindOpenTar, m.Append, true)
	if err != nil {
		return nil, err
	}
	return reader{s}, nil
}

// Unpack unpacks a tar beneath path, which is made if it is missing. Commit waits until all is in place.
func (c *Conn) Unpack(ctx context.Context, path, user string) (Writer, error) {
	m := wire.Path{Path: path, User: user}
	s, _, err := c.open(ctx, wire.KindUnpack, m.Append, true)
	if err != nil {
		return nil, err
	}
	return fileWriter{s}, nil
}

type reader struct{ s *stream }

func (r reader) Read(p []byte) (int, error) { return r.s.Read(p) }

func (r reader) Close() error {
	r.s.reset(ErrClosed)
	return nil
}

type fileWriter struct{ s *stream }

func (w fileWriter) Write(p []byte) (int, error) { return w.s.Write(p) }

func (w fileWriter) Commit(ctx context.Context) error {
	if err := w.s.end(); err != nil {
		return err
	}
	return w.s.wait(ctx)
}

func (w fileWriter) Close() error {
	w.s.reset(ErrClosed)
	return nil
}
