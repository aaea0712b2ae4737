package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// consoleTail is how much of the console an error shows, bytes.
const consoleTail = 4000

// Run boots the kernel and runs the tests of the packages, those that match run (all when it is empty). tell gets each
// line as it comes. A report with failed tests is no error; the error of a machine that ended early holds the end of
// its console.
func Run(ctx context.Context, o *Options, packages []string, run string, tell func(line string)) (*Report, error) {
	if err := os.MkdirAll(o.Cache, 0o755); err != nil {
		return nil, err
	}
	r, err := Fetch(ctx, o)
	if err != nil {
		return nil, err
	}
	m := &machine{kernel: r.Image(), memory: cmp.Or(o.Memory, "4G"), cpus: cmp.Or(o.CPUs, 2), kvm: HaveKVM()}
	if m.root, err = rootImage(ctx, o, r); err != nil {
		return nil, err
	}
	if m.layers, err = layerImage(ctx, o); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Cache, ".run-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	o.Log("build the tests of %q", packages)
	m.tests = filepath.Join(dir, "tests.img")
	if _, err := testDisk(ctx, o, packages, run, m.tests); err != nil {
		return nil, err
	}
	init := filepath.Join(dir, "init")
	if err := build(ctx, o, init, "build", "./internal/testkit/kernel/init"); err != nil {
		return nil, err
	}
	m.initrd = filepath.Join(dir, "initrd")
	if err := initrd(ctx, r, init, m.initrd); err != nil {
		return nil, err
	}
	o.Log("boot %s (KVM: %v)", r.Package, m.kvm)
	rep := &Report{}
	err = m.boot(ctx, dir, func(line string) {
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

func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-consoleTail):])
}
