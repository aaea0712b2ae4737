package microvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer"
)

// keptHeads is how many heads stay; the least lately used goes first, and machines that have it keep it.
const keptHeads = 256

func (d *Driver) headRoot() string { return filepath.Join(d.cfg.StateDir, "vm-heads") }

// head returns the path of a layer's head, made where there is none.
func (d *Driver) head(ctx context.Context, l *layer.Local, f *memoryFiles) (string, error) {
	d.headMu.Lock()
	defer d.headMu.Unlock()
	dir := d.headRoot()
	path := filepath.Join(dir, l.Digest.Hex())
	if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Size() == f.image+f.tail {
		now := time.Now()
		_ = os.Chtimes(path, now, now)
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := pruneHeads(dir); err != nil {
		return "", err
	}
	room, err := d.cfg.Saved.Room(path, f.image+f.tail)
	if err != nil {
		return "", err
	}
	defer room.Close()
	fresh := path + newSuffix
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if err := writeHead(ctx, fresh, l, f); err != nil {
		if linux.NoRoom(err) {
			err = fmt.Errorf("%w: %w", errFullDisk, err)
		}
		return "", errors.Join(err, os.Remove(fresh))
	}
	return path, os.Rename(fresh, path)
}

// writeHead writes the file, to last: it stays when the node starts again.
func writeHead(ctx context.Context, path string, l *layer.Local, f *memoryFiles) (err error) {
	out, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	part := func(from string, at, size, to int64) error {
		in, err := os.Open(from)
		if err != nil {
			return err
		}
		defer in.Close()
		n, err := io.Copy(io.NewOffsetWriter(out, to), io.NewSectionReader(in, at, size))
		if err == nil && n != size {
			err = fmt.Errorf("%w: %s is too short", layer.ErrDamaged, filepath.Base(from))
		}
		return cmp.Or(ctx.Err(), err)
	}
	if err := part(l.MetaPath, 0, l.Manifest.Meta.Size, 0); err != nil {
		return err
	}
	if f.tail > 0 {
		if err := part(l.DataPath, f.body, l.Manifest.Data.Size-f.body, f.image); err != nil {
			return err
		}
	}
	if err := out.Truncate(f.image + f.tail); err != nil {
		return err
	}
	return out.Sync()
}

// pruneHeads makes room for one more.
func pruneHeads(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) < keptHeads {
		return err
	}
	age := func(e os.DirEntry) int64 {
		if st, err := e.Info(); err == nil {
			return st.ModTime().UnixNano()
		}
		return 0
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return cmp.Compare(age(a), age(b)) })
	for _, e := range entries[:len(entries)-keptHeads+1] {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
