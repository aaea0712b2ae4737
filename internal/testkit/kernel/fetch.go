package kernel

import (
	"context"

	"github.com/opendsec/dsec/internal/debkernel"
)

// Options of a run; the zero value of each means its default.
type Options struct {
	Source  string // the source tree
	Cache   string // where what was made is kept
	Suite   string // Debian suite of the kernel: trixie
	Mirror  string
	Package string // the kernel's meta-package: linux-image-cloud-amd64
	Update  bool   // ask the mirror for a newer kernel than the one in the cache
	Memory  string // of the machine, as QEMU takes it: 4G
	CPUs    int    // 2
	Long    bool   // tests that skip themselves with -short as well
	Log     func(format string, args ...any)
}

// Release is an unpacked kernel package.
type Release = debkernel.Release

// Fetch returns the kernel, from the cache if it is there.
func Fetch(ctx context.Context, o *Options) (*Release, error) {
	return debkernel.Fetch(ctx, &debkernel.Options{Cache: o.Cache, Suite: o.Suite, Mirror: o.Mirror, Package: o.Package, Update: o.Update, Log: o.Log})
}
