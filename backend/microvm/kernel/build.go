package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/debkernel"
)

// building begins the names of the directories in which kernels are built.
const building = ".kernel-build-"

// Options of a build; the zero value of each but Cache and Source means its default.
type Options struct {
	Cache  string            // kernels are kept below it
	Source debkernel.Options // where the source comes from
	Jobs   int               // at once; the number of processors
	Urgent bool              // at the priority of its caller, instead of a low one
	Keep   bool              // the tree that it is built in: with another configuration only what changes is compiled again
	Log    func(format string, args ...any)
}

// tools are what a build needs besides a shell, with the packages that bring them.
var tools = map[string]string{"gcc": "gcc", "ld": "binutils", "make": "make", "bc": "bc", "flex": "flex", "bison": "bison", "xz": "xz-utils",
	"dpkg-deb": "dpkg", "apt-get": "apt"}

// lacks tells what is not there.
func lacks() error {
	var need []string
	for tool, pkg := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			need = append(need, pkg)
		}
	}
	if _, err := os.Stat("/usr/include/gelf.h"); err != nil {
		need = append(need, "libelf-dev")
	}
	if len(need) == 0 {
		return nil
	}
	slices.Sort(need)
	return fmt.Errorf("building a kernel takes what is not installed: apt-get install %s", strings.Join(need, " "))
}

// Build returns the kernel, built if it is not there yet: half an hour of a processor. One process builds at a time.
func Build(ctx context.Context, o *Options) (*debkernel.Release, error) {
	if err := lacks(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Source.Cache, 0o755); err != nil {
		return nil, err
	}
	lock, err := alone(ctx, o)
	if err != nil {
		return nil, err
	}
	defer lock.Close() // unlocks
	s, err := debkernel.FetchSource(ctx, &o.Source)
	if err != nil {
		return nil, err
	}
	cc, err := exec.CommandContext(ctx, "gcc", "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("gcc: %w", err)
	}
	in := Inputs{Package: s.Package, Version: s.Version}
	in.Compiler, _, _ = strings.Cut(string(cc), "\n")
	dir := filepath.Join(o.Cache, in.DirName())
	if r := debkernel.Built(dir); r != nil && Unfit(r) == "" {
		return r, nil
	}
	b := &build{o: o, work: filepath.Join(o.Cache, building+in.upstream()), source: in.String()}
	if err := b.run(ctx, s, dir); err != nil {
		return nil, err
	}
	r := debkernel.Built(dir)
	if r == nil {
		return nil, fmt.Errorf("%s: no kernel after it was built", dir)
	}
	return r, nil
}

// lockWait is how often one that waits for another build looks.
const lockWait = 200 * time.Millisecond

// alone returns the file whose lock keeps other builds away, and says so while it waits for one: that may be half an hour, which an
// interrupt must be able to end.
func alone(ctx context.Context, o *Options) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(o.Cache, ".kernel-build.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for said := false; ; said = true {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			lock.Close()
			return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
		}
		if !said && o.Log != nil {
			o.Log("another build is under way in %s: wait for it", o.Cache)
		}
		select {
		case <-ctx.Done():
			lock.Close()
			return nil, ctx.Err()
		case <-time.After(lockWait):
		}
	}
}

// build is one in progress.
type build struct {
	o      *Options
	work   string // where it is built
	tree   string // the source
	source string // what it is built of
}

func (b *build) log(format string, args ...any) {
	if b.o.Log != nil {
		b.o.Log(format, args...)
	}
}

// run builds into dir.
func (b *build) run(ctx context.Context, s *debkernel.Source, dir string) error {
	old, _ := filepath.Glob(filepath.Join(b.o.Cache, building+"*"))
	for _, o := range old { // of other sources; make takes another configuration
		if o != b.work {
			if err := os.RemoveAll(o); err != nil {
				return err
			}
		}
	}
	if err := b.unpack(ctx, s); err != nil {
		return err
	}
	if err := b.configure(ctx); err != nil {
		return err
	}
	b.log("build %s with %d jobs", b.source, b.jobs())
	if err := b.make(ctx, "-j"+strconv.Itoa(b.jobs()), "vmlinux"); err != nil {
		return err
	}
	release, err := os.ReadFile(filepath.Join(b.tree, "include/config/kernel.release"))
	if err != nil {
		return err
	}
	version := strings.TrimSpace(string(release))
	out := filepath.Join(b.work, "out")
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(out, "boot"), 0o755); err != nil {
		return err
	}
	conf, err := os.ReadFile(filepath.Join(b.tree, ".config"))
	if err != nil {
		return err
	}
	image := filepath.Join(out, "boot", "vmlinux-"+version)
	strip := exec.CommandContext(ctx, "objcopy", "--strip-all", filepath.Join(b.tree, "vmlinux"), image)
	if said, err := strip.CombinedOutput(); err != nil {
		return fmt.Errorf("strip the kernel: %w: %.512s", err, said)
	}
	err = errors.Join(os.Chmod(image, 0o644), os.WriteFile(filepath.Join(out, "boot", "config-"+version), conf, 0o644),
		os.WriteFile(filepath.Join(out, sourceName), []byte(b.source+"\n"), 0o644), syncFile(image), os.RemoveAll(dir))
	if err != nil {
		return err
	}
	if err := os.Rename(out, dir); err != nil || b.o.Keep {
		return err
	}
	return os.RemoveAll(b.work)
}

// syncFile waits until a file is on its disk: under a name that says that it is whole, half of it would be taken.
func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// unpack makes the source's tree, unless an interrupted build has left it.
func (b *build) unpack(ctx context.Context, s *debkernel.Source) error {
	b.tree = filepath.Join(b.work, "tree", s.Package)
	whole := filepath.Join(b.work, "unpacked")
	if _, err := os.Stat(whole); err == nil {
		b.log("go on in %s", b.work)
		return nil
	}
	b.log("unpack %s %s", s.Package, s.Version)
	if err := os.RemoveAll(b.work); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(b.tree), 0o755); err != nil {
		return err
	}
	if _, err := s.Unpack(ctx, filepath.Dir(b.tree)); err != nil {
		return err
	}
	return os.WriteFile(whole, nil, 0o644)
}

// configure makes the configuration, and looks whether all that we say is in it: what depends on something that is left out
// would be left out silently.
func (b *build) configure(ctx context.Context) error {
	want := filepath.Join(b.work, "microvm.config")
	if err := os.WriteFile(want, []byte(config), 0o644); err != nil {
		return err
	}
	if err := b.make(ctx, "KCONFIG_ALLCONFIG="+want, "allnoconfig"); err != nil {
		return err
	}
	got, err := os.ReadFile(filepath.Join(b.tree, ".config"))
	if err != nil {
		return err
	}
	return differs(config, string(got))
}

// differs tells what a configuration does not have as it is wanted.
func differs(want, got string) error {
	has := map[string]bool{}
	for line := range strings.Lines(got) {
		has[strings.TrimSpace(line)] = true
	}
	var bad []string
	for line := range strings.Lines(want) {
		line = strings.TrimSpace(line)
		if option, ok := strings.CutSuffix(line, " is not set"); ok {
			// One whose dependencies are left out is not told of.
			if name := strings.TrimPrefix(option, "# "); has[name+"=y"] {
				bad = append(bad, line)
			}
		} else if strings.HasPrefix(line, "CONFIG_") && !has[line] {
			bad = append(bad, line)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return fmt.Errorf("the source does not take these lines of microvm.config: %s", strings.Join(bad, "; "))
}

func (b *build) jobs() int { return cmp.Or(b.o.Jobs, runtime.NumCPU()) }
