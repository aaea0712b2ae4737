package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// consoleTail is how much of the console an error shows, bytes.
const consoleTail = 4000

// Run boots the kernel and runs the tests of the shares. tell gets each line as it comes. A report with failed tests is
// no error; the error of a machine that ended early holds the end of its console. Several may run at once.
func Run(ctx context.Context, o *Options, shares []Share, tell func(line string)) (*Report, error) {
	if err := os.MkdirAll(o.Cache, 0o755); err != nil {
		return nil, err
	}
	m := &machine{memory: cmp.Or(o.Memory, "4G"), cpus: cmp.Or(o.CPUs, 2), kvm: HaveKVM()}
	r, dir, err := prepare(ctx, o, m)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir.Name())
	defer dir.Close()
	for _, s := range shares {
		o.Log("build the tests of %q", s.Packages)
	}
	m.tests = filepath.Join(dir.Name(), "tests.img")
	if _, err := testDisk(ctx, o, shares, m.tests); err != nil {
		return nil, err
	}
	m.scratch = filepath.Join(dir.Name(), "scratch.img")
	if err := makeScratch(ctx, m.scratch); err != nil {
		return nil, err
	}
	init := filepath.Join(dir.Name(), "init")
	if err := build(ctx, o, init, "build", "./internal/testkit/kernel/init"); err != nil {
		return nil, err
	}
	m.initrd = filepath.Join(dir.Name(), "initrd")
	if err := initrd(ctx, r, init, m.initrd); err != nil {
		return nil, err
	}
	o.Log("boot %s (KVM: %v)", r.Package, m.kvm)
	rep := &Report{}
	err = m.boot(ctx, dir.Name(), func(line string) {
		rep.tell(line)
		tell(line)
	})
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	if err == nil && !rep.Done {
		err = errors.New("the machine ended before its tests did")
	}
	if err != nil {
		return rep, fmt.Errorf("%w\n--- end of the console ---\n%s", err, tail(m.console))
	}
	return rep, nil
}

// prepare makes what is kept in the cache, one process at a time, and the run's own directory.
func prepare(ctx context.Context, o *Options, m *machine) (*Release, *os.File, error) {
	lock, err := os.OpenFile(filepath.Join(o.Cache, ".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer lock.Close() // unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, nil, err
	}
	removeDead(o.Cache)
	r, err := Fetch(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	m.kernel = r.Image()
	if m.root, err = rootImage(ctx, o, r); err != nil {
		return nil, nil, err
	}
	if m.layers, err = layerImage(ctx, o); err != nil {
		return nil, nil, err
	}
	dir, err := runDir(o.Cache)
	return r, dir, err
}

// runDir makes a run's own directory, locked as long as the run lives.
func runDir(cache string) (*os.File, error) {
	path, err := os.MkdirTemp(cache, ".run-")
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return dir, syscall.Flock(int(dir.Fd()), syscall.LOCK_EX)
}

// removeDead removes what killed runs left.
func removeDead(cache string) {
	trees, _ := filepath.Glob(filepath.Join(cache, ".tree-*")) // made under the lock that we hold
	for _, t := range trees {
		_ = os.RemoveAll(t)
	}
	runs, _ := filepath.Glob(filepath.Join(cache, ".run-*"))
	for _, r := range runs {
		if dir, err := os.Open(r); err == nil {
			if syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
				_ = os.RemoveAll(r)
			}
			dir.Close()
		}
	}
}

func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-consoleTail):])
}
