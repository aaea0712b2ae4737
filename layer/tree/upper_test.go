package tree_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer/erofs"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/tree"
)

// uppers is a small btrfs, whose snapshots keep inode numbers, as the pool's do.
type uppers struct {
	t    *testing.T
	dir  string
	root *os.File
	n    int
}

func newUppers(t *testing.T) *uppers {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	u := &uppers{t: t, dir: t.TempDir()}
	img := filepath.Join(t.TempDir(), "btrfs")
	if err := os.WriteFile(img, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(img, 512<<20); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.btrfs", "-q", img)
	run(t, "mount", "-o", "loop", img, u.dir)
	var err error
	if u.root, err = os.Open(u.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		u.root.Close()
		run(t, "umount", u.dir)
	})
	return u
}

// begin makes a writable layer.
func (u *uppers) begin() (name string) {
	u.n++
	name = fmt.Sprintf("s%d", u.n)
	if err := linux.SubvolumeCreate(u.root, name); err != nil {
		u.t.Fatal(err)
	}
	for _, d := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(u.dir, name, d), 0o755); err != nil {
			u.t.Fatal(err)
		}
	}
	return name
}

// keep takes a snapshot and returns its upper directory.
func (u *uppers) keep(name string) string {
	u.n++
	snap := fmt.Sprintf("n%d", u.n)
	src, err := os.Open(filepath.Join(u.dir, name))
	if err != nil {
		u.t.Fatal(err)
	}
	defer src.Close()
	if err := linux.SubvolumeSnapshot(u.root, snap, src, true); err != nil {
		u.t.Fatal(err)
	}
	return filepath.Join(u.dir, snap, "upper")
}

// overlay mounts layers, the lowest first, below a writable one; upper "" = none.
func (u *uppers) overlay(t *testing.T, upper string, lower ...string) (dir string, umount func()) {
	t.Helper()
	dir = t.TempDir()
	slices.Reverse(lower)
	opts := "redirect_dir=off,metacopy=off,index=off,xino=off,lowerdir=" + strings.Join(lower, ":")
	if upper != "" {
		opts += fmt.Sprintf(",upperdir=%s/%s/upper,workdir=%s/%s/work", u.dir, upper, u.dir, upper)
	} else if len(lower) == 1 {
		opts += ":" + t.TempDir() // overlayfs wants two
	}
	run(t, "mount", "-t", "overlay", "overlay", "-o", opts, dir)
	return dir, func() { run(t, "umount", dir) }
}

// mount attaches a finished layer.
func mountResult(t *testing.T, r *tree.Result) string {
	return layertest.Mount(t, r.MetaPath, r.DataPath)
}

// scribble changes a tree at random, as programs do.
func scribble(t *testing.T, rng *rand.Rand, dir string, steps int) {
	t.Helper()
	pick := func(dirs bool) string {
		var all []string
		for rel := range layertest.Describe(t, dir) {
			st, err := os.Lstat(filepath.Join(dir, rel))
			if err == nil && st.IsDir() == dirs && (rel != "." || dirs) {
				all = append(all, rel)
			}
		}
		slices.Sort(all)
		if len(all) == 0 {
			return ""
		}
		return filepath.Join(dir, all[rng.IntN(len(all))])
	}
	for n := range steps {
		in, file, new := pick(true), pick(false), fmt.Sprintf("new%d", rng.IntN(40))
		path := filepath.Join(in, new)
		var err error
		switch rng.IntN(13) {
		case 0, 1:
			_ = os.RemoveAll(path)
			err = os.WriteFile(path, []byte(strings.Repeat(fmt.Sprint(n, " "), rng.IntN(3000))), 0o640)
		case 2:
			if file != "" && regular(file) {
				var f *os.File
				if f, err = os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0); err == nil {
					_, err = f.WriteString("more")
					f.Close()
				}
			}
		case 3:
			if file != "" {
				err = os.Remove(file)
			}
		case 4, 5:
			_ = os.RemoveAll(path)
			err = os.MkdirAll(filepath.Join(path, "below"), 0o750)
		case 6:
			if in != dir {
				err = os.RemoveAll(in)
			}
		case 7: // a directory made anew
			if in != dir {
				if err = os.RemoveAll(in); err == nil {
					err = os.MkdirAll(filepath.Join(in, "anew"), 0o700)
				}
			}
		case 8: // a directory in place of a file, and back
			if file != "" {
				if err = os.Remove(file); err == nil {
					err = os.MkdirAll(filepath.Join(file, "was-a-file"), 0o755)
				}
			}
		case 9:
			if in != dir {
				if err = os.RemoveAll(in); err == nil {
					err = os.WriteFile(in, []byte("was a directory"), 0o600)
				}
			}
		case 10:
			if file != "" {
				_ = os.RemoveAll(path)
				err = os.Rename(file, path)
			}
		case 11:
			if file != "" && regular(file) {
				_ = os.RemoveAll(path)
				err = os.Link(file, path)
			}
		case 12:
			err = os.Chmod(in, os.FileMode(0o700|rng.IntN(64)))
		}
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// linkless leaves out which names are one file, and how many: an overlay tells what its layers happen to have.
func linkless(d map[string]string) map[string]string {
	out := map[string]string{}
	for path, line := range d {
		head, rest, _ := strings.Cut(line, " nlink=")
		_, rest, _ = strings.Cut(rest, "dev=")
		rest, _, _ = strings.Cut(rest, " same=")
		_, attrs, _ := strings.Cut(line, "\" [")
		out[path] = head + rest + attrs
	}
	return out
}

func regular(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.Mode().IsRegular() && st.Sys().(*syscall.Stat_t).Nlink < 60
}

func fromUppers(t *testing.T, us ...tree.Upper) *tree.Result {
	t.Helper()
	return mustBuild(t, tree.Options{Overlay: true, Devices: tree.SkipDevices}, func(b *tree.Builder) error {
		for _, u := range us {
			if err := b.AddUpper(t.Context(), u); err != nil {
				return err
			}
			b.NextLayer()
		}
		return nil
	})
}

// What an overlay wrote becomes a layer which, over the same lower one, shows the same tree: at once, in increments, and
// merged over several generations.
func TestUppersBecomeLayers(t *testing.T) {
	if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
		t.Skip("needs mkfs.btrfs")
	}
	u := newUppers(t)
	seeds := uint64(3)
	if os.Getenv("DSEC_TEST_SLOW") != "" {
		seeds = 60
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			lower := t.TempDir()
			layertest.RandomTree(t, lower, seed, 40)
			check := func(want map[string]string, what string, layers ...string) {
				t.Helper()
				dir, umount := u.overlay(t, "", append([]string{lower}, layers...)...)
				defer umount()
				t.Log(what, len(want), "objects")
				layertest.Compare(t, linkless(want), linkless(layertest.Describe(t, dir)))
			}
			s := u.begin()
			dir, umount := u.overlay(t, s, lower)
			scribble(t, rng, dir, 30)
			run(t, "sync", "-f", u.dir)
			n1, want1 := u.keep(s), layertest.Describe(t, dir)
			l1 := mountResult(t, fromUppers(t, tree.Upper{Path: n1}))
			check(want1, "whole", l1)

			scribble(t, rng, dir, 30)
			n2, want2 := u.keep(s), layertest.Describe(t, dir)
			umount()
			l2 := mountResult(t, fromUppers(t, tree.Upper{Path: n2, Since: n1}))
			check(want2, "increment", l1, l2)

			child := u.begin()
			dir, umount = u.overlay(t, child, lower, n2)
			scribble(t, rng, dir, 30)
			n3, want3 := u.keep(child), layertest.Describe(t, dir)
			umount()
			check(want3, "merged", mountResult(t, fromUppers(t, tree.Upper{Path: n2}, tree.Upper{Path: n3})))
			check(want3, "over an increment", l1, l2, mountResult(t, fromUppers(t, tree.Upper{Path: n3})))
		})
	}
}

// Nothing changed: nothing goes in. What is not wanted stays out, with all that leads to it alone.
func TestUpperFilter(t *testing.T) {
	u := newUppers(t)
	s := u.begin()
	dir, umount := u.overlay(t, s, t.TempDir())
	defer umount()
	for _, d := range []string{"work/src", "tmp/cache", "etc"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"work/src/a", "work/b", "tmp/cache/x", "etc/hosts"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte(f), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	n := u.keep(s)
	var seen []string
	names := func(up tree.Upper) []string {
		seen = nil
		up.See = func(path string, _ *erofs.Inode) { seen = append(seen, path) }
		fromUppers(t, up)
		return seen
	}
	if got := names(tree.Upper{Path: n, Since: n}); len(got) != 0 {
		t.Errorf("nothing changed, but %v went in", got)
	}
	got := names(tree.Upper{Path: n, Want: func(p string) bool { return strings.HasPrefix(p, "/work/src") }})
	if want := []string{"/", "/work", "/work/src", "/work/src/a"}; !slices.Equal(got, want) {
		t.Errorf("went in: %v, want %v", got, want)
	}
	got = names(tree.Upper{Path: n,
		Want:  func(p string) bool { return !strings.HasPrefix(p, "/tmp") && p != "/etc/hosts" },
		Prune: func(p string) bool { return p == "/tmp" }})
	if want := []string{"/", "/etc", "/work", "/work/b", "/work/src", "/work/src/a"}; !slices.Equal(got, want) {
		t.Errorf("went in: %v, want %v", got, want)
	}
}
