package importer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/erofs"
	"github.com/opendsec/dsec/layer/oci"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/layer/union"
	"github.com/opendsec/dsec/sandbox"
)

const (
	// maxStack bounds the layers of one request.
	maxStack = 256
	// hiddenPaths is how many paths are listed for two layers when nothing else is asked for.
	hiddenPaths = 20
	// changesAtOnce is how many changes one message brings.
	changesAtOnce = 500
)

// stored implements StoreService: what is asked about content that is published.
type stored struct{ s *service }

var _ dsecv1connect.StoreServiceHandler = stored{}

func wire(err error) error {
	if err == nil {
		return nil
	}
	return connect.NewError(code(err), err)
}

func (st stored) ListStored(ctx context.Context, r *dsecv1.ListStoredRequest) (*dsecv1.ListStoredResponse, error) {
	out, err := within(ctx, st.s.watch, func(ctx context.Context) (*dsecv1.ListStoredResponse, error) { return st.list(ctx, r) })
	return out, wire(err)
}

func (st stored) list(ctx context.Context, r *dsecv1.ListStoredRequest) (*dsecv1.ListStoredResponse, error) {
	var digests []layer.Digest
	for _, d := range r.GetDigests() {
		digests = append(digests, layer.Digest(d))
	}
	if len(digests) == 0 {
		var err error
		if digests, err = st.s.store.List(ctx); err != nil {
			return nil, err
		}
	}
	out := &dsecv1.ListStoredResponse{}
	for _, d := range digests {
		l := &dsecv1.StoredLayer{Digest: string(d)}
		switch m, err := st.s.store.Get(ctx, d); {
		case errors.Is(err, sandbox.ErrNotFound):
			continue
		case errors.Is(err, sandbox.ErrInvalid):
			return nil, err
		case err == nil: // one that is damaged is listed all the same
			l.MetaBytes, l.DataBytes, l.Files = m.Meta.Size, m.Data.Size, m.Files
		}
		out.Layers = append(out.Layers, l)
	}
	return out, nil
}

// reading waits for its turn to hold trees in memory.
func (s *service) reading(ctx context.Context) (done func(), err error) {
	select {
	case s.readers <- struct{}{}:
		return func() { <-s.readers }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// content is a layer that is open for reading.
type content struct {
	manifest *layer.Manifest
	root     *erofs.Inode
}

// open reads a layer's metadata.
func (s *service) open(ctx context.Context, digest string) (*content, error) {
	d, err := layer.ParseDigest(digest)
	if err != nil {
		return nil, err
	}
	m, err := s.store.Get(ctx, d)
	if err != nil {
		return nil, err
	}
	r, err := s.store.OpenMeta(ctx, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	image := make([]byte, m.Meta.Size)
	if _, err := io.ReadFull(r, image); err != nil {
		return nil, fmt.Errorf("layer %s: metadata: %w: %w", d, sandbox.ErrUnavailable, err)
	}
	root, err := erofs.Read(image, m.Data.Size)
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w: %w: %w", d, sandbox.ErrUnavailable, layer.ErrDamaged, err)
	}
	return &content{m, root}, nil
}

func (s *service) openAll(ctx context.Context, digests []string) ([]*content, error) {
	if len(digests) == 0 || len(digests) > maxStack {
		return nil, fmt.Errorf("%w: %d layers; want 1 to %d", sandbox.ErrInvalid, len(digests), maxStack)
	}
	out := make([]*content, len(digests))
	for n, d := range digests {
		var err error
		if out[n], err = s.open(ctx, d); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func show(ctx context.Context, layers []*content) (*union.Tree, error) {
	roots := make([]*erofs.Inode, len(layers))
	for n, l := range layers {
		roots[n] = l.root
	}
	return union.Show(ctx, roots)
}

func (st stored) DescribeStack(ctx context.Context, r *dsecv1.DescribeStackRequest) (*dsecv1.DescribeStackResponse, error) {
	out, err := within(ctx, st.s.watch, func(ctx context.Context) (*dsecv1.DescribeStackResponse, error) { return st.describe(ctx, r) })
	return out, wire(err)
}

func (st stored) describe(ctx context.Context, r *dsecv1.DescribeStackRequest) (*dsecv1.DescribeStackResponse, error) {
	done, err := st.s.reading(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	layers, err := st.s.openAll(ctx, r.GetDigests())
	if err != nil {
		return nil, err
	}
	t, err := show(ctx, layers)
	if err != nil {
		return nil, err
	}
	limit := int(r.GetPaths())
	if limit == 0 {
		limit = hiddenPaths
	}
	out := &dsecv1.DescribeStackResponse{}
	for n, l := range layers {
		out.Layers = append(out.Layers, &dsecv1.StoredLayer{Digest: r.Digests[n], MetaBytes: l.manifest.Meta.Size, DataBytes: l.manifest.Data.Size, Files: l.manifest.Files})
	}
	pairs := map[[2]int]*dsecv1.HiddenPaths{}
	for _, h := range t.Hidden {
		p := pairs[[2]int{h.By, h.Of}]
		if p == nil {
			p = &dsecv1.HiddenPaths{By: int32(h.By), Of: int32(h.Of)}
			pairs[[2]int{h.By, h.Of}] = p
			out.Hidden = append(out.Hidden, p)
		}
		p.Names += h.Names
		if len(p.Paths) < limit {
			p.Paths = append(p.Paths, &dsecv1.HiddenPath{Path: text(h.Path), How: h.How, Names: h.Names})
		}
	}
	return out, nil
}

// text makes any file name fit for a message.
func text(path string) string {
	if s := fmt.Sprintf("%q", path); s != `"`+path+`"` {
		return s
	}
	return path
}

func (st stored) DiffStacks(ctx context.Context, r *dsecv1.DiffStacksRequest, out *connect.ServerStream[dsecv1.DiffStacksResponse]) error {
	// What is left to itself must not send: the stream is over.
	type part struct {
		msg *dsecv1.DiffStacksResponse
		err chan error
	}
	parts, ended := make(chan part), make(chan struct{})
	defer close(ended)
	over := make(chan error, 1)
	go func() {
		_, err := within(ctx, st.s.watch, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, st.diff(ctx, r, func(m *dsecv1.DiffStacksResponse) error {
				p := part{m, make(chan error, 1)}
				select {
				case parts <- p:
					return <-p.err
				case <-ended:
					return context.Canceled
				}
			})
		})
		over <- err
	}()
	for {
		select {
		case p := <-parts:
			p.err <- out.Send(p.msg)
		case err := <-over:
			return wire(err)
		}
	}
}

func (st stored) diff(ctx context.Context, r *dsecv1.DiffStacksRequest, send func(*dsecv1.DiffStacksResponse) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, st.s.o.Timeout, fmt.Errorf("diff: %w: it took longer than %v", sandbox.ErrDeadline, st.s.o.Timeout))
	defer cancel()
	done, err := st.s.reading(ctx)
	if err != nil {
		return err
	}
	defer done()
	var sides [2][]*content
	var trees [2]*union.Tree
	for n, digests := range [][]string{r.GetFrom(), r.GetTo()} {
		var err error
		if sides[n], err = st.s.openAll(ctx, digests); err != nil {
			return err
		}
		if trees[n], err = show(ctx, sides[n]); err != nil {
			return err
		}
	}
	var same union.Same
	if r.GetContents() {
		stage, err := st.s.store.Stage(ctx)
		if err != nil {
			return err
		}
		defer stage.Close()
		d := newDataFiles(st.s.store, stage.Dir(), st.s.o.MinFree)
		defer d.close()
		same = func(ctx context.Context, old, new *union.Node) (bool, error) {
			return d.equal(ctx, sides[0], r.From, old, sides[1], r.To, new)
		}
	}
	msg, left := &dsecv1.DiffStacksResponse{}, r.GetLimit()
	for c, err := range union.Diff(ctx, trees[0], trees[1], same) {
		if err != nil {
			return err
		}
		f := &dsecv1.FileChange{Path: text(c.Path), Kind: c.Kind, What: c.What}
		if c.Old != nil {
			f.OldBytes = c.Old.Size
		}
		if c.New != nil {
			f.NewBytes = c.New.Size
		}
		if msg.Changes = append(msg.Changes, f); len(msg.Changes) == changesAtOnce {
			if err := send(msg); err != nil {
				return err
			}
			msg = &dsecv1.DiffStacksResponse{}
		}
		if left--; left == 0 {
			break
		}
	}
	return send(msg)
}

func (st stored) VerifyStored(ctx context.Context, r *dsecv1.VerifyStoredRequest) (*dsecv1.VerifyStoredResponse, error) {
	n, err := within(ctx, st.s.watch, func(ctx context.Context) (int64, error) { return st.verify(ctx, r.GetDigest()) })
	if errors.Is(err, layer.ErrDamaged) {
		return &dsecv1.VerifyStoredResponse{Bytes: n, Damage: err.Error()}, nil
	}
	if err != nil {
		return nil, wire(err)
	}
	return &dsecv1.VerifyStoredResponse{Bytes: n}, nil
}

func (st stored) verify(ctx context.Context, digest string) (int64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, st.s.o.Timeout, fmt.Errorf("verify: %w: it took longer than %v", sandbox.ErrDeadline, st.s.o.Timeout))
	defer cancel()
	d, err := layer.ParseDigest(digest)
	if err != nil {
		return 0, err
	}
	m, err := st.s.store.Get(ctx, d)
	if err != nil {
		return 0, err
	}
	return m.Meta.Size + m.Data.Size, st.s.store.Verify(ctx, d)
}

// maxRead bounds what is read of one file.
const maxRead = 4 << 20

func (st stored) ReadStored(ctx context.Context, r *dsecv1.ReadStoredRequest) (*dsecv1.ReadStoredResponse, error) {
	found, err := within(ctx, st.s.watch, func(ctx context.Context) (*dsecv1.ReadStackResponse, error) { return st.read(ctx, r.GetRead()) })
	if err != nil {
		return nil, wire(err)
	}
	return &dsecv1.ReadStoredResponse{Found: found}, nil
}

func (st stored) read(ctx context.Context, r *dsecv1.ReadStackRequest) (*dsecv1.ReadStackResponse, error) {
	done, err := st.s.reading(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	layers, err := st.s.openAll(ctx, r.GetDigests())
	if err != nil {
		return nil, err
	}
	t, err := show(ctx, layers)
	if err != nil {
		return nil, err
	}
	n := t.Lookup(r.GetPath())
	if n == nil {
		return nil, fmt.Errorf("%.200q: %w in these layers", r.GetPath(), sandbox.ErrNotFound)
	}
	i := n.Inode
	out := &dsecv1.ReadStackResponse{Type: "device", Size: i.Size, Mode: i.Mode & 0o7777, Uid: i.UID, Gid: i.GID}
	switch i.Mode & erofs.TypeMask {
	case erofs.TypeDir:
		out.Type = "directory"
	case erofs.TypeFifo:
		out.Type = "fifo"
	case erofs.TypeRegular:
		out.Type = "file"
		want := min(i.Size, r.GetMaxBytes(), maxRead)
		if want <= 0 {
			return out, nil
		}
		stage, err := st.s.store.Stage(ctx)
		if err != nil {
			return nil, err
		}
		defer stage.Close()
		d := newDataFiles(st.s.store, stage.Dir(), st.s.o.MinFree)
		defer d.close()
		data, err := d.of(ctx, r.Digests[n.Layer], layers[n.Layer].manifest.Data.Size)
		if err != nil {
			return nil, err
		}
		out.Data = make([]byte, want)
		if _, err := io.ReadFull(tree.NewFileReader(i, data), out.Data); err != nil {
			return nil, fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
		}
	}
	return out, nil
}

func (st stored) CollapseStack(ctx context.Context, r *dsecv1.CollapseStackRequest, out *connect.ServerStream[dsecv1.CollapseStackResponse]) error {
	done, err := st.s.reading(ctx)
	if err != nil {
		return wire(err)
	}
	defer done()
	layers, err := within(ctx, st.s.watch, func(ctx context.Context) ([]*content, error) { return st.s.openAll(ctx, r.GetDigests()) })
	if err != nil {
		return wire(err)
	}
	j := &job{kind: dsecv1.LayerKind_LAYER_KIND_BASE, name: r.GetName(), source: fmt.Sprintf("%d layers", len(layers)),
		fill: func(ctx context.Context, b *tree.Builder, dir string, p oci.Progress) (layer.Config, error) {
			d := newDataFiles(st.s.store, dir, st.s.o.MinFree)
			defer d.close()
			in := make([]tree.Source, len(layers))
			for n, l := range layers {
				data, err := d.of(ctx, r.Digests[n], l.manifest.Data.Size)
				if err != nil {
					return layer.Config{}, err
				}
				in[n] = tree.Source{Root: l.root, Data: data}
				p("collapse", int64(n), int64(len(layers)))
			}
			return layer.Config{}, b.AddLayers(ctx, in)
		}}
	if err := j.check(); err != nil {
		return wire(err)
	}
	return wire(st.s.do(ctx, j, func(m *dsecv1.ImportLayerResponse) error {
		if l := m.GetLayer(); l != nil {
			l.Name, l.Source = "", ""
		}
		return out.Send(&dsecv1.CollapseStackResponse{Progress: m.GetProgress(), Layer: m.GetLayer()})
	}))
}

// dataFiles opens the data of layers for reading anywhere; what the store can only stream is copied to a file first.
type dataFiles struct {
	store   layer.Store
	dir     string
	minFree int64
	files   map[string]*os.File
}

func newDataFiles(store layer.Store, dir string, minFree int64) *dataFiles {
	return &dataFiles{store: store, dir: dir, minFree: minFree, files: map[string]*os.File{}}
}

func (d *dataFiles) of(ctx context.Context, digest string, size int64) (io.ReaderAt, error) {
	if size == 0 {
		return nil, nil
	}
	if f := d.files[digest]; f != nil {
		return f, nil
	}
	r, err := d.store.OpenData(ctx, layer.Digest(digest))
	if err != nil {
		return nil, err
	}
	f, ok := r.(*os.File)
	if !ok {
		defer r.Close()
		if err := tree.CheckSpace(d.dir, size+d.minFree); err != nil {
			return nil, err
		}
		if f, err = os.CreateTemp(d.dir, "data-"); err != nil {
			return nil, err
		}
		if err := os.Remove(f.Name()); err != nil {
			f.Close()
			return nil, err
		}
		if _, err := io.Copy(f, r); err != nil {
			f.Close()
			return nil, fmt.Errorf("layer %s: %w: %w", digest, sandbox.ErrUnavailable, err)
		}
	}
	d.files[digest] = f
	return f, nil
}

func (d *dataFiles) close() {
	for _, f := range d.files {
		f.Close()
	}
}

// equal compares the contents of two files of the same size.
func (d *dataFiles) equal(ctx context.Context, a []*content, aDigests []string, old *union.Node, b []*content, bDigests []string, new *union.Node) (bool, error) {
	readers := [2]io.Reader{}
	for n, side := range []struct {
		of      []*content
		digests []string
		node    *union.Node
	}{{a, aDigests, old}, {b, bDigests, new}} {
		data, err := d.of(ctx, side.digests[side.node.Layer], side.of[side.node.Layer].manifest.Data.Size)
		if err != nil {
			return false, err
		}
		readers[n] = tree.NewFileReader(side.node.Inode, data)
	}
	var bufs [2][64 << 10]byte
	for left := old.Inode.Size; left > 0; {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		n := min(left, int64(len(bufs[0])))
		for k, r := range readers {
			if _, err := io.ReadFull(r, bufs[k][:n]); err != nil {
				return false, fmt.Errorf("compare files: %w: %w", sandbox.ErrUnavailable, err)
			}
		}
		if string(bufs[0][:n]) != string(bufs[1][:n]) {
			return false, nil
		}
		left -= n
	}
	return true, nil
}
