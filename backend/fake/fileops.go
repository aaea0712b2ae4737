package fake

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"strings"

	"github.com/opendsec/dsec/guest/wire"
)

// path serves the requests on paths.
func (p *peer) path(h wire.Header, m *wire.Path) {
	f := p.m.files
	switch h.Kind {
	case wire.KindMkdir:
		p.answer(h.ID, f.mkdir(m.Path, m.Follow, m.Mode))
	case wire.KindRename:
		p.answer(h.ID, f.rename(m.Path, m.To))
	case wire.KindRemove:
		p.answer(h.ID, f.remove(m.Path, m.Follow, m.Force))
	case wire.KindUnpack:
		p.open(h.ID, nil, func(s *stream) *wire.Error { return f.unpack(clean(m.Path), s) })
	default:
		n := f.find(m.Path)
		if n == nil {
			p.fail(h.ID, refuse(wire.CodeNotFound, "no file "+m.Path))
			return
		}
		p.existing(h, m, n)
	}
}

// existing serves requests on a path where something is.
func (p *peer) existing(h wire.Header, m *wire.Path, n *node) {
	switch h.Kind {
	case wire.KindStat:
		info := n.info(m.Path)
		p.reply(h.ID, info.Append)
	case wire.KindListDir:
		if !n.dir {
			p.fail(h.ID, refuse(wire.CodeNotDirectory, m.Path+" is not a directory"))
			return
		}
		list, more := p.m.files.list(clean(m.Path), int(m.Depth), int(m.Max))
		p.reply(h.ID, func(b []byte) []byte { return wire.AppendFiles(b, list, more) })
	case wire.KindOpenRead:
		if n.dir {
			p.fail(h.ID, refuse(wire.CodeIsDirectory, m.Path+" is a directory"))
			return
		}
		data := n.data[min(m.Offset, int64(len(n.data))):]
		if m.Length >= 0 {
			data = data[:min(m.Length, int64(len(data)))]
		}
		info := n.info(m.Path)
		p.open(h.ID, info.Append, func(s *stream) *wire.Error {
			_, _ = s.Write(data)
			return nil
		})
	case wire.KindOpenTar:
		p.open(h.ID, nil, func(s *stream) *wire.Error {
			if err := p.m.files.pack(clean(m.Path), s); err != nil {
				return refuse(wire.CodeInternal, err.Error())
			}
			return nil
		})
	}
}

func (p *peer) openWrite(id uint32, m *wire.OpenWrite) {
	f := p.m.files
	name := clean(m.Path)
	if m.Parents {
		if err := f.mkdir(path.Dir(name), true, 0o755); err != nil {
			p.fail(id, err)
			return
		}
	}
	switch dir, old := f.find(path.Dir(name)), f.find(name); {
	case dir == nil:
		p.fail(id, refuse(wire.CodeNotFound, "no directory "+path.Dir(name)))
		return
	case old != nil && old.dir:
		p.fail(id, refuse(wire.CodeIsDirectory, name+" is a directory"))
		return
	}
	mode := m.Mode
	if mode == 0 {
		mode = 0o644
	}
	p.open(id, nil, func(s *stream) *wire.Error {
		data, err := io.ReadAll(s)
		if err != nil || !f.put(name, data, mode, false) {
			return refuse(wire.CodeInternal, "the file was not written")
		}
		return nil
	})
}

// list returns what lies beneath a directory, with names relative to it.
func (f *files) list(dir string, depth, most int) (out []wire.FileInfo, more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range f.below(dir) {
		rel := strings.TrimPrefix(strings.TrimPrefix(name, dir), "/")
		if strings.Count(rel, "/") >= depth {
			continue
		}
		if len(out) == most {
			return out, true
		}
		out = append(out, f.nodes[name].info(rel))
	}
	return out, false
}

func (f *files) pack(root string, w io.Writer) error {
	f.mu.Lock()
	names := f.below(root)
	if n := f.nodes[root]; !n.dir {
		names = []string{root}
		root = path.Dir(root)
	}
	nodes := make([]*node, len(names))
	for i, name := range names {
		nodes[i] = f.nodes[name]
	}
	f.mu.Unlock()
	tw := tar.NewWriter(w)
	for i, name := range names {
		n := nodes[i]
		h := &tar.Header{Name: strings.TrimPrefix(strings.TrimPrefix(name, root), "/"), Mode: int64(n.mode), Size: int64(len(n.data)), ModTime: n.mtime, Typeflag: tar.TypeReg}
		if n.dir {
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write(n.data); err != nil {
			return err
		}
	}
	return tw.Close()
}

func (f *files) unpack(root string, r io.Reader) *wire.Error {
	if err := f.mkdir(root, true, 0o755); err != nil {
		return err
	}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			_, _ = io.Copy(io.Discard, r)
			return nil
		}
		if err != nil {
			return refuse(wire.CodeInvalid, "archive: "+err.Error())
		}
		if strings.HasPrefix(h.Name, "/") || !localName(h.Name) {
			return refuse(wire.CodeInvalid, "archive: "+h.Name+" leaves the directory")
		}
		name := path.Join(root, h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := f.mkdir(name, true, uint32(h.Mode)); err != nil {
				return err
			}
			continue
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			return refuse(wire.CodeInvalid, "archive: "+err.Error())
		}
		if err := f.mkdir(path.Dir(name), true, 0o755); err != nil {
			return err
		}
		f.put(name, data, uint32(h.Mode), false)
	}
}

// localName tells whether a name stays beneath where it is unpacked.
func localName(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return false
		}
	}
	return true
}
