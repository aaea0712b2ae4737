package importer

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/bmatcuk/doublestar/v4"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/erofs"
	"github.com/opendsec/dsec/layer/oci"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/sandbox"
)

// Bounds of what a pack's report names.
const (
	maxPackNames   = 1000
	maxPackLargest = 20
	maxPatterns    = 256
)

// ownFiles are what every sandbox has of its own, whatever its layers hold.
var ownFiles = []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}

// packs implements PackService.
type packs struct{ s *service }

// MakeLayer makes a layer of what sandboxes have written.
func (p packs) MakeLayer(ctx context.Context, r *dsecv1.MakeLayerRequest, out *connect.ServerStream[dsecv1.MakeLayerResponse]) error {
	send := func(m *dsecv1.PackDiffResponse) error { return out.Send(&dsecv1.MakeLayerResponse{Step: m}) }
	if err := p.s.pack(ctx, r, send); err != nil {
		return connect.NewError(code(err), err)
	}
	return nil
}

func (s *service) pack(ctx context.Context, r *dsecv1.MakeLayerRequest, send func(*dsecv1.PackDiffResponse) error) error {
	asked := r.GetPack()
	choose, err := newChooser(asked.GetInclude(), asked.GetExclude())
	if err != nil {
		return err
	}
	if len(r.Directories) == 0 || r.Since != "" && len(r.Directories) != 1 {
		return fmt.Errorf("pack: %w: one directory with since, or some without", sandbox.ErrInvalid)
	}
	report := &reportOf{}
	var skipped tree.Stats
	j := &job{kind: asked.GetKind(), name: asked.GetName(), source: "pack:" + asked.GetSandboxId(), overlay: true,
		fill: func(ctx context.Context, b *tree.Builder, _ string, p oci.Progress) (layer.Config, error) {
			seen := int64(0)
			for i, dir := range r.Directories {
				if i > 0 {
					b.NextLayer()
				}
				u := tree.Upper{Path: dir, Want: choose.want, Prune: choose.prune, See: func(_ string, n *erofs.Inode) {
					seen += n.Size
					p("pack", seen, 0)
				}}
				if i == len(r.Directories)-1 {
					u.Since = r.Since
				}
				if err := b.AddUpper(ctx, u); err != nil {
					return layer.Config{}, err
				}
			}
			b.Each(report.see)
			skipped = b.Stats()
			return layer.Config{}, nil
		}}
	if err := j.check(); err != nil {
		return err
	}
	return s.do(ctx, j, func(m *dsecv1.ImportLayerResponse) error {
		if m.Layer == nil {
			return send(&dsecv1.PackDiffResponse{Progress: m.Progress})
		}
		rep := report.proto()
		rep.Excluded, rep.Skipped = choose.excluded, skipped.SkippedDevices+skipped.SkippedSockets
		return send(&dsecv1.PackDiffResponse{Result: &dsecv1.PackResult{Layer: m.Layer, Reused: m.Reused, Report: rep}})
	})
}

// chooser applies the rules of a pack.
type chooser struct {
	include, exclude []string
	excluded         int64
}

func newChooser(include, exclude []string) (*chooser, error) {
	c := &chooser{exclude: slices.Clone(ownFiles)}
	for _, l := range []struct {
		what string
		from []string
		to   *[]string
	}{{"include", include, &c.include}, {"exclude", exclude, &c.exclude}} {
		if len(l.from) > maxPatterns {
			return nil, fmt.Errorf("pack: %w: %d %s patterns are more than %d", sandbox.ErrInvalid, len(l.from), l.what, maxPatterns)
		}
		for _, p := range l.from {
			if !strings.HasPrefix(p, "/") || strings.ContainsAny(p, "\x00") || !doublestar.ValidatePattern(p) || slices.Contains(strings.Split(p, "/"), "..") {
				return nil, fmt.Errorf("pack: %w: %s %.200q: want a path from the root, with * and ** where wanted, as in /tmp/** or /work/*.log", sandbox.ErrInvalid, l.what, p)
			}
			*l.to = append(*l.to, strings.TrimSuffix(path.Clean(p), "/**"))
		}
	}
	return c, nil
}

// match tells whether a pattern stands for a path, or for a directory above it.
func match(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		for at := p; at != "/" && at != ""; at = path.Dir(at) {
			if ok, _ := doublestar.Match(pattern, at); ok {
				return true
			}
		}
		return pattern == "/" || pattern == ""
	})
}

func (c *chooser) want(p string) bool {
	if match(c.exclude, p) {
		c.excluded++
		return false
	}
	return len(c.include) == 0 || match(c.include, p)
}

// prune tells that nothing below p is wanted: it is excluded as a whole.
func (c *chooser) prune(p string) bool { return match(c.exclude, p) }

// reportOf collects what goes into a pack.
type reportOf struct {
	r       dsecv1.PackReport
	largest []*dsecv1.PackedFile
}

func (r *reportOf) see(path string, n *erofs.Inode) {
	name := path
	switch kind := n.Mode & erofs.TypeMask; {
	case n.IsWhiteout():
		r.r.Removed++
		name = "-" + path
	case kind == erofs.TypeDir:
		r.r.Directories++
		return // told by what is in them
	case kind == erofs.TypeRegular:
		r.r.Files++
		r.r.Bytes += n.Size
		r.rank(path, n.Size)
	default:
		r.r.Others++
	}
	if len(r.r.Names) < maxPackNames {
		r.r.Names = append(r.r.Names, strings.ToValidUTF8(name, "\uFFFD"))
	} else {
		r.r.NamesCut = true
	}
}

// rank keeps the largest files.
func (r *reportOf) rank(path string, size int64) {
	if len(r.largest) == maxPackLargest && size <= r.largest[maxPackLargest-1].Bytes {
		return
	}
	r.largest = append(r.largest, &dsecv1.PackedFile{Path: strings.ToValidUTF8(path, "\uFFFD"), Bytes: size})
	slices.SortStableFunc(r.largest, func(a, b *dsecv1.PackedFile) int { return cmp.Compare(b.Bytes, a.Bytes) })
	r.largest = r.largest[:min(len(r.largest), maxPackLargest)]
}

func (r *reportOf) proto() *dsecv1.PackReport {
	r.r.Largest = r.largest
	return &r.r
}
