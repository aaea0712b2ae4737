package build

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/sandbox"
)

// copy makes a layer of files of the context.
func (b *builder) copy(ctx context.Context, n int, s Step, c instructions.SourcesAndDest, chown, chmod string) error {
	o, err := b.ownership(ctx, chown, chmod)
	if err != nil {
		return err
	}
	var sources []string
	for _, source := range c.SourcePaths {
		found, err := b.o.Context.find(source)
		if err != nil {
			return err
		}
		sources = append(sources, found...)
	}
	into := strings.HasSuffix(c.DestPath, "/") || path.Base(c.DestPath) == "."
	if len(sources) > 1 && !into {
		return fmt.Errorf("%w: %d files are copied to %s: it must end with a slash", sandbox.ErrInvalid, len(sources), c.DestPath)
	}
	dest := b.absolute(c.DestPath)
	there, err := b.look(ctx, dest, 0)
	if err != nil {
		return err
	}
	prefix := dest
	var items []item
	for _, source := range sources {
		found, dir, err := b.o.Context.tree(source, ".")
		if err != nil {
			return err
		}
		switch {
		case dir && there == nil && len(sources) == 1: // the directory itself is new, and what the source is
			st, err := b.o.Context.root.Stat(source)
			if err != nil {
				return err
			}
			items = append(items, item{from: source, to: "./", info: st})
		case dir && there != nil && there.GetType() != "directory":
			return fmt.Errorf("%w: %s is a file, and a directory is copied there", sandbox.ErrInvalid, dest)
		case !dir && !into && there.GetType() != "directory":
			prefix = path.Dir(dest)
			found[0].to = path.Base(dest)
		case !dir:
			found[0].to = path.Base(source)
		}
		items = append(items, found...)
	}
	digest, err := b.o.Context.digest(items, o)
	if err != nil {
		return err
	}
	return b.make(ctx, n, s, b.key("copy", prefix, digest), prefix, func(w io.Writer) error { return b.o.Context.write(w, items, o) })
}

// workdir sets the directory, and makes it where it is not.
func (b *builder) workdir(ctx context.Context, n int, s Step, dir string) error {
	b.config.Workdir = b.absolute(dir)
	there, err := b.look(ctx, b.config.Workdir, 0)
	switch {
	case err != nil:
		return err
	case there.GetType() == "directory":
		b.note(n, s, false)
		return nil
	case there != nil:
		return fmt.Errorf("%w: %s is there and no directory", sandbox.ErrInvalid, b.config.Workdir)
	}
	return b.make(ctx, n, s, b.key("workdir", b.config.Workdir), b.config.Workdir, func(w io.Writer) error {
		_, err := w.Write(make([]byte, 1024)) // an archive of nothing: its top is the directory
		return err
	})
}

// absolute is a path of the image.
func (b *builder) absolute(p string) string {
	if !strings.HasPrefix(p, "/") {
		p = b.config.Workdir + "/" + p
	}
	return path.Clean("/" + p)
}

// make uploads an archive as the next layer, unless the step is known.
func (b *builder) make(ctx context.Context, n int, s Step, key, prefix string, write func(io.Writer) error) error {
	known, err := b.known(ctx, key)
	if err != nil {
		return err
	}
	b.note(n, s, known)
	if known {
		return nil
	}
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(write(w))
	}()
	defer func() {
		r.Close()
		<-done
	}()
	resp, err := b.o.Client.UploadLayer(ctx, client.Upload{Kind: "base", Step: key, Prefix: prefix, Over: b.stack, Source: s.Text}, r, nil)
	if err != nil {
		return err
	}
	b.stack = append(b.stack, resp.GetLayer().GetDigest())
	return nil
}

// look tells what is at a path of the layers so far; nil = nothing.
func (b *builder) look(ctx context.Context, p string, most int64) (*dsecv1.ReadStackResponse, error) {
	if len(b.stack) == 0 {
		return nil, nil
	}
	found, err := b.o.Client.Layers.ReadStack(ctx, &dsecv1.ReadStackRequest{Digests: b.stack, Path: p, MaxBytes: most})
	if connect.CodeOf(err) == connect.CodeNotFound {
		return nil, nil
	}
	return found, err
}

// ownership reads --chown and --chmod. Names are those of the layers so far.
func (b *builder) ownership(ctx context.Context, chown, chmod string) (ownership, error) {
	var o ownership
	if chmod != "" {
		v, err := strconv.ParseUint(chmod, 8, 32)
		if err != nil || v > 0o7777 {
			return o, fmt.Errorf("%w: --chmod=%s: want octal digits, as in 0755", sandbox.ErrInvalid, chmod)
		}
		mode := fs.FileMode(v)
		o.mode = &mode
	}
	if chown == "" {
		return o, nil
	}
	user, group, both := strings.Cut(chown, ":")
	var err error
	if o.uid, err = b.id(ctx, "/etc/passwd", user); err != nil {
		return o, err
	}
	if o.gid = o.uid; both && group != "" {
		o.gid, err = b.id(ctx, "/etc/group", group)
	}
	return o, err
}

// id is a number, or a name that a file of the image has.
func (b *builder) id(ctx context.Context, file, name string) (int, error) {
	if v, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(v), nil
	}
	found, err := b.look(ctx, file, 1<<20)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(found.GetData())) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) >= 3 && f[0] == name {
			if v, err := strconv.ParseUint(f[2], 10, 31); err == nil {
				return int(v), nil
			}
		}
	}
	return 0, fmt.Errorf("%w: --chown: %s of the image has no %q", sandbox.ErrInvalid, file, name)
}
