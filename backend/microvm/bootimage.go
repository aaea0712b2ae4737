package microvm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/sandbox"
)

// modules are what a machine needs, with what they depend on; which of them are built in is the kernel's affair.
var modules = []string{"virtio_mmio", "virtio_console", "virtio_blk", "virtio_net", "ext4", "erofs", "overlay"}

// manyModules are those that a machine needs besides that has more disks than transports.
var manyModules = []string{"virtio_scsi", "sd_mod"}

// memoryModules are those that a machine needs besides whose layers are in its memory.
var memoryModules = []string{"virtio_pmem", "nd_pmem", "dm_mod"}

// recipe changes when the steps below change what they make.
const recipe = "4"

// bootImage is what a machine starts with.
type bootImage struct {
	kernel, initrd string
	version        string // of the kernel
	rehearsal      layerFiles
	lacks          string // what its kernel has not that layers in memory take; "" = nothing
}

// makeBootImage returns the kernel and the initial file system, made once for each kernel and dsec-init and kept in dir.
func makeBootImage(ctx context.Context, dir string, r *debkernel.Release, init string) (*bootImage, error) {
	prog, err := os.ReadFile(init)
	if err != nil {
		return nil, fmt.Errorf("dsec-init: %w (build it, or say where it lies)", err)
	}
	h := sha256.New()
	if err := hashFile(h, r.Image()); err != nil { // two directories may have the same name, and one other contents tomorrow
		return nil, err
	}
	fmt.Fprintf(h, "%s %s %q %q %q %x", recipe, r.Package, modules, manyModules, memoryModules, sha256.Sum256(prog))
	key := fmt.Sprintf("%x", h.Sum(nil)[:8])
	b := &bootImage{kernel: filepath.Join(dir, "kernel-"+key), initrd: filepath.Join(dir, "initrd-"+key), version: r.Version, lacks: LacksForMemory(r),
		rehearsal: layerFiles{meta: filepath.Join(dir, "rehearsal-"+key+".meta"), data: filepath.Join(dir, "rehearsal-"+key+".data")}}
	if exists(b.kernel) && exists(b.initrd) && exists(b.rehearsal.meta) && exists(b.rehearsal.data) {
		return b, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	kernel, err := r.Vmlinux()
	if err != nil { // QEMU takes the image as it is as well
		if kernel, err = os.ReadFile(r.Image()); err != nil {
			return nil, err
		}
	}
	if r.Own {
		if err := debkernel.Bootable(bytes.NewReader(kernel), int64(len(kernel))); err != nil {
			return nil, fmt.Errorf("%w: kernel %s: %w: make it again (dsec kernel build), or name another one by --opt kernel=DIR", sandbox.ErrUnsupported, r.Image(), err)
		}
	}
	initrd, err := makeInitrd(ctx, r, prog)
	if err != nil {
		return nil, err
	}
	meta, data, err := makeRehearsal(prog)
	if err != nil {
		return nil, err
	}
	for path, data := range map[string][]byte{b.kernel: kernel, b.initrd: initrd, b.rehearsal.meta: meta, b.rehearsal.data: data} {
		if err := os.WriteFile(path+".new", data, 0o600); err != nil {
			return nil, err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// makeInitrd makes the initial file system.
func makeInitrd(ctx context.Context, r *debkernel.Release, prog []byte) ([]byte, error) {
	list, err := r.Modules(ctx, modules...)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	a := &debkernel.Archive{W: &b}
	a.Add("modules", 0o040755, nil)
	a.Add("init", 0o100755, prog)
	for i, m := range list {
		a.Add(fmt.Sprintf("modules/%02d-%s.ko", i, m.Name), 0o100644, m.Data)
	}
	if list, err = r.Modules(ctx, slices.Concat(modules, manyModules)...); err != nil {
		return nil, err
	}
	a.Add("many", 0o040755, nil)
	for i, m := range list { // those that are loaded already are passed over
		a.Add(fmt.Sprintf("many/%02d-%s.ko", i, m.Name), 0o100644, m.Data)
	}
	if list, err = r.Modules(ctx, memoryModules...); err != nil {
		return nil, err
	}
	a.Add("memory", 0o040755, nil)
	for i, m := range list {
		a.Add(fmt.Sprintf("memory/%02d-%s.ko", i, m.Name), 0o100644, m.Data)
	}
	a.End()
	return b.Bytes(), nil
}

func hashFile(h io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(h, f)
	return err
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }
