package fake

import (
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opendsec/dsec/guest/wire"
)

// files is a tree in memory, by absolute path. There are no links and no owners but root.
type files struct {
	mu    sync.Mutex
	nodes map[string]*node
	extra int64 // bytes that count as used
}

type node struct {
	dir   bool
	mode  uint32
	data  []byte
	mtime time.Time
}

func newFiles() *files {
	f := &files{nodes: map[string]*node{}}
	for _, d := range []string{"/", "/root", "/tmp", "/home", "/etc"} {
		f.nodes[d] = &node{dir: true, mode: 0o755, mtime: time.Now()}
	}
	return f
}

func (f *files) size() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.extra
	for _, x := range f.nodes {
		n += int64(len(x.data))
	}
	return n
}

func (f *files) find(name string) *node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[clean(name)]
}

// clean makes a path absolute; relative ones start at /root.
func clean(name string) string {
	if !strings.HasPrefix(name, "/") {
		name = "/root/" + name
	}
	return path.Clean(name)
}

func (f *files) get(name string) ([]byte, bool) {
	n := f.find(name)
	if n == nil || n.dir {
		return nil, false
	}
	return n.data, true
}

// put writes a file; false = its directory is missing, or it is a directory.
func (f *files) put(name string, data []byte, mode uint32, appendTo bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	name = clean(name)
	parent, old := f.nodes[path.Dir(name)], f.nodes[name]
	if parent == nil || !parent.dir || old != nil && old.dir {
		return false
	}
	if appendTo && old != nil {
		data = append(slices.Clone(old.data), data...)
	}
	f.nodes[name] = &node{mode: mode, data: slices.Clone(data), mtime: time.Now()}
	return true
}

func (f *files) mkdir(name string, parents bool, mode uint32) *wire.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mkdirLocked(clean(name), parents, mode)
}

func (f *files) mkdirLocked(name string, parents bool, mode uint32) *wire.Error {
	if n := f.nodes[name]; n != nil {
		if parents && n.dir {
			return nil
		}
		return refuse(wire.CodeExists, name+" exists")
	}
	switch p := f.nodes[path.Dir(name)]; {
	case p == nil && !parents:
		return refuse(wire.CodeNotFound, "no directory "+path.Dir(name))
	case p == nil:
		if err := f.mkdirLocked(path.Dir(name), true, 0o755); err != nil {
			return err
		}
	case !p.dir:
		return refuse(wire.CodeNotDirectory, path.Dir(name)+" is not a directory")
	}
	f.nodes[name] = &node{dir: true, mode: mode, mtime: time.Now()}
	return nil
}

// below returns the paths beneath a directory, sorted. f.mu is held.
func (f *files) below(dir string) []string {
	prefix := strings.TrimSuffix(dir, "/") + "/"
	var list []string
	for p := range f.nodes {
		if p != "/" && strings.HasPrefix(p, prefix) {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	return list
}

func (f *files) remove(name string, recursive, force bool) *wire.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	name = clean(name)
	n := f.nodes[name]
	if n == nil {
		if force {
			return nil
		}
		return refuse(wire.CodeNotFound, "no file "+name)
	}
	below := f.below(name)
	if n.dir && len(below) > 0 && !recursive {
		return refuse(wire.CodeNotEmpty, name+" is not empty")
	}
	for _, p := range below {
		delete(f.nodes, p)
	}
	delete(f.nodes, name)
	return nil
}

func (f *files) rename(from, to string) *wire.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, to = clean(from), clean(to)
	if f.nodes[from] == nil || f.nodes[path.Dir(to)] == nil {
		return refuse(wire.CodeNotFound, "no file "+from+", or no directory for "+to)
	}
	for _, p := range f.below(from) {
		f.nodes[to+strings.TrimPrefix(p, from)] = f.nodes[p]
		delete(f.nodes, p)
	}
	f.nodes[to] = f.nodes[from]
	delete(f.nodes, from)
	return nil
}

func (n *node) info(name string) wire.FileInfo {
	mode := n.mode | 0o100000
	if n.dir {
		mode = n.mode | 0o040000
	}
	return wire.FileInfo{Path: name, Mode: mode, Size: int64(len(n.data)), MtimeNS: n.mtime.UnixNano()}
}
