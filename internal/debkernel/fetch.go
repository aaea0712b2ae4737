package debkernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Options say which kernel; the zero value of each but Cache means its default.
type Options struct {
	Cache   string // where what was fetched is kept
	Suite   string // Debian suite of the kernel: trixie
	Mirror  string
	Package string // the kernel's meta-package: linux-image-cloud-amd64
	Update  bool   // ask the mirror for a newer kernel than the one in the cache
	Log     func(format string, args ...any)
}

// Release is an unpacked kernel package, or a kernel that was built from one.
type Release struct {
	Package string // name_version
	Dir     string // its tree: boot/, usr/lib/modules/
	Version string // as uname says
	Own     bool   // built: boot/vmlinux-VERSION, without modules
}

// Find returns the kernel if the cache has it, or is the directory of one that was built. Error: os.ErrNotExist.
func Find(o *Options) (*Release, error) {
	if r := Built(o.Cache); r != nil {
		return r, nil
	}
	b, err := os.ReadFile(o.note())
	if err != nil {
		return nil, err
	}
	return open(filepath.Join(o.Cache, strings.TrimSpace(string(b))))
}

func (o *Options) suite() string { return cmp.Or(o.Suite, "trixie") }
func (o *Options) meta() string  { return cmp.Or(o.Package, "linux-image-cloud-amd64") }

// note names the kernel that was fetched last.
func (o *Options) note() string { return filepath.Join(o.Cache, o.suite()+"-"+o.meta()) }

// Built returns the kernel that was built into dir, nil if none was.
func Built(dir string) *Release {
	images, _ := filepath.Glob(filepath.Join(dir, "boot", "vmlinux-*"))
	if len(images) != 1 {
		return nil
	}
	return &Release{Package: filepath.Base(dir), Dir: dir, Version: strings.TrimPrefix(filepath.Base(images[0]), "vmlinux-"), Own: true}
}

// Fetch returns the kernel, from the cache if it is there. It asks apt with package lists of its own, so that the
// machine's are left as they are. It needs root, apt-get and dpkg-deb.
func Fetch(ctx context.Context, o *Options) (*Release, error) {
	meta, note := o.meta(), o.note()
	if r, err := Find(o); err == nil && (r.Own || !o.Update) {
		return r, nil
	}
	apt, env, err := o.apt(ctx)
	if err != nil {
		return nil, err
	}
	deps, err := command(ctx, apt, env, "apt-cache", "depends", meta)
	if err != nil {
		return nil, err
	}
	m := regexp.MustCompile(`Depends: (linux-image-[0-9]\S*)`).FindStringSubmatch(deps)
	if m == nil {
		return nil, fmt.Errorf("package %s of %s names no kernel", meta, o.suite())
	}
	if o.Log != nil {
		o.Log("kernel %s: download", m[1])
	}
	deb, err := download(ctx, apt, env, m[1])
	if err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(filepath.Base(deb), ".deb")
	r, err := unpack(ctx, o, deb, filepath.Join(o.Cache, name))
	if err != nil {
		return nil, err
	}
	return r, errors.Join(os.WriteFile(note, []byte(name+"\n"), 0o644), os.Remove(deb))
}

func unpack(ctx context.Context, o *Options, deb, dir string) (*Release, error) {
	if r, err := open(dir); err == nil {
		return r, nil
	}
	tmp := dir + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return nil, err
	}
	if _, err := command(ctx, o.Cache, "", "dpkg-deb", "-x", deb, tmp); err != nil {
		return nil, err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return nil, err
	}
	return open(dir)
}

func open(dir string) (*Release, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil {
		return nil, err
	}
	if len(images) != 1 {
		return nil, fmt.Errorf("%s: %d kernels: %w", dir, len(images), os.ErrNotExist)
	}
	return &Release{Package: filepath.Base(dir), Dir: dir, Version: strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")}, nil
}

// Image is the kernel as QEMU takes it.
func (r *Release) Image() string {
	if r.Own {
		return filepath.Join(r.Dir, "boot", "vmlinux-"+r.Version)
	}
	return filepath.Join(r.Dir, "boot", "vmlinuz-"+r.Version)
}

// ModulesDir holds the kernel's modules.
func (r *Release) ModulesDir() string {
	if dir := filepath.Join(r.Dir, "usr/lib/modules", r.Version); exists(dir) {
		return dir
	}
	return filepath.Join(r.Dir, "lib/modules", r.Version)
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }
