package debkernel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Source is a package of the kernel's source.
type Source struct {
	Package string // linux-source-6.12
	Version string // of the package
	Deb     string // its file
}

// FetchSource gets the source that the suite's package linux-source names: the same version as its kernels. It is
// downloaded once; Update looks for a newer one.
func FetchSource(ctx context.Context, o *Options) (*Source, error) {
	if !o.Update {
		if s := foundSource(o.Cache); s != nil {
			return s, nil
		}
	}
	apt, env, err := o.apt(ctx)
	if err != nil {
		return nil, err
	}
	deps, err := command(ctx, apt, env, "apt-cache", "depends", "linux-source")
	if err != nil {
		return nil, err
	}
	m := regexp.MustCompile(`Depends: (linux-source-[0-9]\S*)`).FindStringSubmatch(deps)
	if m == nil {
		return nil, fmt.Errorf("package linux-source of %s names no source", o.suite())
	}
	if o.Log != nil {
		o.Log("%s: download", m[1])
	}
	deb, err := download(ctx, apt, env, m[1])
	if err != nil {
		return nil, err
	}
	if err := keepSource(o.Cache, deb); err != nil {
		return nil, err
	}
	if s := foundSource(o.Cache); s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("%s: not the name of a source's package", filepath.Base(deb))
}

// keepSource puts a package into the cache, in the place of all that are there.
func keepSource(cache, deb string) error {
	old, _ := filepath.Glob(filepath.Join(cache, "linux-source-*.deb"))
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	return os.Rename(deb, filepath.Join(cache, filepath.Base(deb)))
}

// foundSource is the one in the cache; apt writes a version's colon as %3a in the file's name.
func foundSource(cache string) *Source {
	debs, _ := filepath.Glob(filepath.Join(cache, "linux-source-*.deb"))
	if len(debs) != 1 {
		return nil
	}
	f := strings.Split(strings.TrimSuffix(filepath.Base(debs[0]), ".deb"), "_")
	if len(f) < 2 {
		return nil
	}
	return &Source{Package: f[0], Version: strings.ReplaceAll(f[1], "%3a", ":"), Deb: debs[0]}
}

// Unpack unpacks the source below dir, but for what no kernel of a virtual machine is made of: documents, other
// processors, drivers of devices that none has. What remains is the tree.
func (s *Source) Unpack(ctx context.Context, dir string) (tree string, err error) {
	pkg := filepath.Join(dir, "package")
	if _, err := command(ctx, dir, "", "dpkg-deb", "-x", s.Deb, pkg); err != nil {
		return "", err
	}
	args := []string{"-xf", filepath.Join(pkg, "usr/src", s.Package+".tar.xz"), "-C", dir, "--no-same-owner"}
	for _, e := range []string{"Documentation/*/*", "tools/testing/*", "tools/perf/*", "sound/*.[chS]", "drivers/gpu/*.[chS]", "drivers/media/*.[chS]",
		"drivers/infiniband/*.[ch]", "drivers/staging/*.[ch]", "drivers/net/ethernet/*.[ch]", "drivers/net/wireless/*.[ch]", "drivers/usb/*.c", "drivers/iio/*.[ch]",
		"arch/[!x]*/*.[chS]", "arch/[!x]*/*.dts*", "arch/xtensa/*.[chS]"} {
		args = append(args, "--exclude="+s.Package+"/"+e)
	}
	if _, err := command(ctx, dir, "", "tar", args...); err != nil {
		return "", err
	}
	return filepath.Join(dir, s.Package), os.RemoveAll(pkg)
}
