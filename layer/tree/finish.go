package tree

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/erofs"
)

// Result is a finished layer, in files of the builder's directory.
type Result struct {
	Manifest *layer.Manifest
	Digest   layer.Digest
	MetaPath string
	DataPath string // empty when the layer has no data
	Stats    Stats
}

// Finish makes the layer. Nothing can be added afterwards.
func (b *Builder) Finish(ctx context.Context, config layer.Config) (*Result, error) {
	b.spooled = true
	data, err := b.spool.close()
	if err != nil {
		return nil, err
	}
	stats := b.Stats()
	b.model.settleMarks()
	root, names := freeze(b.model.root)
	dataPath := filepath.Join(b.dir, "data")
	if b.model.dropped {
		packed, err := b.compact(ctx, root, data.Size)
		if err != nil {
			return nil, fmt.Errorf("remove dead data: %w", err)
		}
		if packed != nil {
			stats.DeadBytes = data.Size - packed.Size
			data = *packed
		}
	}
	if data.Size == 0 {
		if err := os.Remove(dataPath); err != nil {
			return nil, err
		}
		dataPath = ""
	}
	metaPath := filepath.Join(b.dir, "meta.erofs")
	meta, err := b.writeMeta(ctx, metaPath, root, data)
	if err != nil {
		return nil, err
	}
	m := &layer.Manifest{Version: layer.ManifestVersion, Meta: meta, Data: data, Files: names, Config: config}
	_, digest, err := m.Encode()
	if err != nil {
		return nil, err
	}
	return &Result{Manifest: m, Digest: digest, MetaPath: metaPath, DataPath: dataPath, Stats: stats}, nil
}

// freeze turns the model into what the image writer takes, and counts the names.
func freeze(root *node) (*erofs.Inode, int64) {
	names := int64(1)
	stack := []*node{root}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		n.inode.Entries = make([]erofs.Dirent, 0, len(n.children))
		for name, c := range n.children {
			n.inode.Entries = append(n.inode.Entries, erofs.Dirent{Name: name, Inode: c.inode})
			if c.inode.IsDir() {
				stack = append(stack, c)
			}
		}
		names += int64(len(n.children))
		n.children = nil
		markWhiteouts(n.inode)
		slices.SortFunc(n.inode.Entries, func(a, b erofs.Dirent) int { return strings.Compare(a.Name, b.Name) })
	}
	return root.inode, names
}

// markWhiteouts marks a directory that holds whiteouts. Where overlayfs has nothing to merge it with, on another base or
// below an opaque directory, it would list them as names that cannot be opened; the mark makes it look.
func markWhiteouts(dir *erofs.Inode) {
	if !dir.IsDir() || slices.ContainsFunc(dir.Xattrs, func(x erofs.Xattr) bool { return x.Name == originXattr }) ||
		!slices.ContainsFunc(dir.Entries, func(e erofs.Dirent) bool { return e.Inode.IsWhiteout() }) {
		return
	}
	dir.Xattrs = append(dir.Xattrs, erofs.Xattr{Name: originXattr})
	slices.SortFunc(dir.Xattrs, func(a, b erofs.Xattr) int { return strings.Compare(a.Name, b.Name) })
}

// originXattr, empty, says "copied up from somewhere".
const originXattr = "trusted.overlay.origin"

// compact copies what files still refer to into a new blob. It returns nil when that is everything.
func (b *Builder) compact(ctx context.Context, root *erofs.Inode, size int64) (*layer.Blob, error) {
	var files []*erofs.Inode
	seen := map[*erofs.Inode]bool{} // of files with several names
	type run struct{ length, to int64 }
	live := map[int64]*run{} // by place in the old blob; files of equal content share
	used := int64(0)
	stack := []*erofs.Inode{root}
	for len(stack) > 0 {
		dir := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, e := range dir.Entries {
			if e.Inode.IsDir() {
				stack = append(stack, e.Inode)
			}
			if len(e.Inode.Extents) == 0 || seen[e.Inode] {
				continue
			}
			seen[e.Inode] = true
			files = append(files, e.Inode)
			for _, x := range e.Inode.Extents {
				if live[x.Blob] == nil {
					live[x.Blob] = &run{length: x.Length, to: -1}
					used += (x.Length + erofs.BlockSize - 1) / erofs.BlockSize * erofs.BlockSize
				}
			}
		}
	}
	if used == size {
		return nil, nil
	}
	out, err := os.OpenFile(filepath.Join(b.dir, "data.new"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	s, err := newSpool(out, b.opts.MinFree)
	if err != nil {
		return nil, err
	}
	copyAll := func() error {
		buf := make([]byte, segmentSize)
		// In the order of the old blob: what was read together stays together.
		order := make([]int64, 0, len(live))
		for from := range live {
			order = append(order, from)
		}
		slices.Sort(order)
		for _, from := range order {
			r := live[from]
			r.to = s.size
			for off := int64(0); off < r.length; off += segmentSize {
				if err := canceled(ctx); err != nil {
					return err
				}
				p := buf[:min(segmentSize, r.length-off)]
				if _, err := b.file.ReadAt(p, from+off); err != nil {
					return err
				}
				if err := s.put(p); err != nil {
					return err
				}
			}
			if err := s.align(); err != nil {
				return err
			}
		}
		return nil
	}
	err = copyAll()
	blob, cerr := s.close()
	if err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	moved := map[*erofs.Extent]bool{} // extent lists are shared by files of equal content
	for _, f := range files {
		if len(f.Extents) == 0 || moved[&f.Extents[0]] {
			continue
		}
		moved[&f.Extents[0]] = true
		for n := range f.Extents {
			f.Extents[n].Blob = live[f.Extents[n].Blob].to
		}
	}
	return &blob, os.Rename(out.Name(), filepath.Join(b.dir, "data"))
}

// writeMeta writes the metadata image and describes it.
func (b *Builder) writeMeta(ctx context.Context, path string, root *erofs.Inode, data layer.Blob) (layer.Blob, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return layer.Blob{}, err
	}
	defer f.Close()
	sum, err := erofs.Write(f, root, erofs.Options{DataSize: data.Size, Devices: b.opts.Devices == KeepDevices})
	if err != nil {
		return layer.Blob{}, imageError(err)
	}
	blob, err := layer.Describe(ctx, f, sum.Size)
	if err != nil {
		return layer.Blob{}, err
	}
	// The kernel tells file systems apart by UUID; this one follows from all of the content.
	first := make([]byte, min(layer.ChunkSize, sum.Size))
	if _, err := f.ReadAt(first, 0); err != nil {
		return layer.Blob{}, err
	}
	erofs.SetUUID(first[:erofs.BlockSize], contentUUID(blob.Chunks, data.Chunks))
	if _, err := f.WriteAt(first[:erofs.BlockSize], 0); err != nil {
		return layer.Blob{}, diskFull(err)
	}
	blob.Chunks[0] = layer.HashChunk(first)
	return blob, f.Close()
}

// contentUUID is a UUID of version 8 (custom) made from digests.
func contentUUID(lists ...[]string) (u [16]byte) {
	h := blake3.New()
	for _, list := range lists {
		for _, c := range list {
			b, _ := hex.DecodeString(c) // our own encoding
			h.Write(b)
		}
	}
	_, _ = io.ReadFull(h.Digest(), u[:]) // never fails
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return u
}

func imageError(err error) error {
	for _, kind := range []error{erofs.ErrInvalid, erofs.ErrTooLarge} {
		if errors.Is(err, kind) {
			return fmt.Errorf("%w: %w", errInvalid, err)
		}
	}
	return diskFull(err)
}
