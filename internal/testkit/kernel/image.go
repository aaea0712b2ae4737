package kernel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/opendsec/dsec/internal/testkit"
)

// rootPackages are what the driver and its tests need of a host, beside Debian's minimum.
var rootPackages = []string{"apparmor", "btrfs-progs", "kmod", "procps", "python3"}

// recipe changes when the steps below change what they make.
const recipe = "1"

// Sizes of the disks' file systems, bytes; the files are sparse.
const (
	rootSize    = 16 << 30
	layerSize   = 2 << 30
	scratchSize = 24 << 30
)

// rootImage returns a disk with a Debian tree and the kernel's modules.
func rootImage(ctx context.Context, o *Options, r *Release) (string, error) {
	tar, err := debianTar(ctx, o)
	if err != nil {
		return "", err
	}
	return image(ctx, o, "root", rootSize, func(dir string) error {
		if _, err := command(ctx, dir, "", "tar", "--numeric-owner", "--xattrs", "-xpf", tar); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(dir, "usr/lib/modules"), 0o755); err != nil {
			return err
		}
		if _, err := command(ctx, dir, "", "cp", "-a", r.ModulesDir(), filepath.Join(dir, "usr/lib/modules", r.Version)); err != nil {
			return err
		}
		// depmod is the tree's own: it reads files and writes some beside them.
		_, err := command(ctx, dir, "", "chroot", dir, "depmod", r.Version)
		return err
	}, tar, r.Package)
}

// debianTar makes the tree of the machine.
func debianTar(ctx context.Context, o *Options) (string, error) {
	out, err := command(ctx, o.Source, "", filepath.Join(o.Source, "hack/debian-base.sh"), rootPackages...)
	if err != nil {
		return "", err
	}
	return firstLine(out), nil
}

// layerImage returns a disk with what tests look for in DSEC_CACHE.
func layerImage(ctx context.Context, o *Options) (string, error) {
	tar, err := testkit.DebianBase(ctx)
	if err != nil {
		return "", err
	}
	_, digest, err := testkit.BaseLayer(ctx)
	if err != nil {
		return "", err
	}
	return image(ctx, o, "layers", layerSize, func(dir string) error {
		if _, err := command(ctx, dir, "", "cp", "--sparse=always", tar, dir); err != nil {
			return err
		}
		_, err := command(ctx, dir, "", "cp", "-a", filepath.Join(testkit.Cache(), "test-layers"), dir)
		return err
	}, tar, string(digest))
}

// image makes an ext4 file system of what fill puts into a directory, once for each set of inputs, and removes older
// ones of the same name.
func image(ctx context.Context, o *Options, name string, size int64, fill func(dir string) error, inputs ...string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%s %q %d", recipe, inputs, size)
	path := filepath.Join(o.Cache, fmt.Sprintf("%s-%x.img", name, h.Sum(nil)[:6]))
	if exists(path) {
		return path, nil
	}
	o.Log("make %s", path)
	old, _ := filepath.Glob(filepath.Join(o.Cache, name+"-*.img"))
	for _, f := range old {
		_ = os.Remove(f)
	}
	return path, makeImage(ctx, path, size, fill)
}

// makeImage needs no mount: mke2fs copies the directory.
func makeImage(ctx context.Context, path string, size int64, fill func(dir string) error) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".tree-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if err := fill(dir); err != nil {
		return err
	}
	tmp := path + ".new"
	_ = os.Remove(tmp)
	if _, err := command(ctx, filepath.Dir(path), "", "mke2fs", "-q", "-t", "ext4", "-m", "0", "-E", "lazy_itable_init=1",
		"-d", dir, tmp, strconv.FormatInt(size>>10, 10)+"k"); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// makeScratch makes an empty xfs.
func makeScratch(ctx context.Context, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(scratchSize), f.Close()); err != nil {
		return err
	}
	_, err = command(ctx, filepath.Dir(path), "", "mkfs.xfs", "-q", path)
	return err
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }
