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

// Release is an unpacked kernel package.
type Release struct {
	Package string // name_version
	Dir     string // its tree: boot/, usr/lib/modules/
	Version string // as uname says
}

// keyring is what Debian's archives are signed with.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Find returns the kernel if the cache has it. Error: os.ErrNotExist.
func Find(o *Options) (*Release, error) {
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

// Fetch returns the kernel, from the cache if it is there. It asks apt with package lists of its own, so that the
// machine's are left as they are. It needs root, apt-get and dpkg-deb.
func Fetch(ctx context.Context, o *Options) (*Release, error) {
	suite, meta, note := o.suite(), o.meta(), o.note()
	if !o.Update {
		if r, err := Find(o); err == nil {
			return r, nil
		}
	}
	apt := filepath.Join(o.Cache, "apt", suite)
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(apt, d), 0o755); err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(keyring); err != nil {
		return nil, fmt.Errorf("%w: install debian-archive-keyring", err)
	}
	conf := filepath.Join(apt, "apt.conf")
	for path, content := range map[string]string{
		filepath.Join(apt, "sources.list"): fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring,
			cmp.Or(o.Mirror, "http://deb.debian.org/debian"), suite),
		conf: fmt.Sprintf("Dir::Etc::sourcelist %q;\nDir::Etc::sourceparts \"/dev/null\";\nDir::State::lists %q;\nDir::Cache %q;\n"+
			"Acquire::Languages \"none\";\nAcquire::Retries \"3\";\nAPT::Architecture \"amd64\";\nAPT::Sandbox::User \"root\";\n",
			filepath.Join(apt, "sources.list"), filepath.Join(apt, "lists"), filepath.Join(apt, "cache")),
	} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return nil, err
		}
	}
	env := "APT_CONFIG=" + conf
	if _, err := command(ctx, apt, env, "apt-get", "-q", "update"); err != nil {
		return nil, err
	}
	deps, err := command(ctx, apt, env, "apt-cache", "depends", meta)
	if err != nil {
		return nil, err
	}
	m := regexp.MustCompile(`Depends: (linux-image-[0-9]\S*)`).FindStringSubmatch(deps)
	if m == nil {
		return nil, fmt.Errorf("package %s of %s names no kernel", meta, suite)
	}
	if o.Log != nil {
		o.Log("kernel %s: download", m[1])
	}
	old, _ := filepath.Glob(filepath.Join(apt, "*.deb"))
	for _, f := range old {
		_ = os.Remove(f)
	}
	if _, err := command(ctx, apt, env, "apt-get", "-q", "download", m[1]); err != nil {
		return nil, err
	}
	debs, err := filepath.Glob(filepath.Join(apt, m[1]+"_*.deb"))
	if err != nil || len(debs) != 1 {
		return nil, fmt.Errorf("download of %s left %q, %v", m[1], debs, err)
	}
	name := strings.TrimSuffix(filepath.Base(debs[0]), ".deb")
	r, err := unpack(ctx, o, debs[0], filepath.Join(o.Cache, name))
	if err != nil {
		return nil, err
	}
	return r, errors.Join(os.WriteFile(note, []byte(name+"\n"), 0o644), os.Remove(debs[0]))
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
func (r *Release) Image() string { return filepath.Join(r.Dir, "boot", "vmlinuz-"+r.Version) }

// ModulesDir holds the kernel's modules.
func (r *Release) ModulesDir() string {
	if dir := filepath.Join(r.Dir, "usr/lib/modules", r.Version); exists(dir) {
		return dir
	}
	return filepath.Join(r.Dir, "lib/modules", r.Version)
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }
