package kernel

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// bootModules are what it takes to reach the root disk, with what they depend on first.
var bootModules = []string{"virtio_blk"}

// initrd makes the initial file system: the first program and the disk's driver.
func initrd(ctx context.Context, r *Release, init, path string) error {
	var b bytes.Buffer
	a := &archive{w: &b}
	prog, err := os.ReadFile(init)
	if err != nil {
		return err
	}
	for _, d := range []string{"dev", "root", strings.TrimPrefix(ModuleDir, "/")} {
		a.add(d, 0o040755, nil)
	}
	a.add("init", 0o100755, prog)
	for i, name := range bootModules {
		files, err := filepath.Glob(filepath.Join(r.ModulesDir(), "kernel/drivers/*", name+".ko*"))
		if err != nil || len(files) > 1 {
			return fmt.Errorf("module %s: %d files, %v", name, len(files), err)
		}
		if len(files) == 0 {
			continue // built in
		}
		ko, err := decompress(ctx, files[0])
		if err != nil {
			return err
		}
		a.add(fmt.Sprintf("%s/%02d-%s.ko", strings.TrimPrefix(ModuleDir, "/"), i, name), 0o100644, ko)
	}
	a.add("TRAILER!!!", 0, nil)
	return os.WriteFile(path, b.Bytes(), 0o600)
}

func decompress(ctx context.Context, path string) ([]byte, error) {
	switch filepath.Ext(path) {
	case ".ko":
		return os.ReadFile(path)
	case ".xz", ".zst", ".gz":
		tool := map[string]string{".xz": "xz", ".zst": "zstd", ".gz": "gzip"}[filepath.Ext(path)]
		out, err := command(ctx, filepath.Dir(path), "", tool, "-dc", path)
		return []byte(out), err
	}
	return nil, fmt.Errorf("module %s: unknown compression", path)
}

// archive writes the "newc" form of cpio, which the kernel unpacks into its initial file system.
type archive struct {
	w   *bytes.Buffer
	ino int
}

func (a *archive) add(name string, mode uint32, data []byte) {
	a.ino++
	w := bufio.NewWriter(a.w)
	// ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
	fmt.Fprintf(w, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	_ = w.Flush() // into memory
	a.pad()
	a.w.Write(data)
	a.pad()
}

func (a *archive) pad() {
	for a.w.Len()%4 != 0 {
		a.w.WriteByte(0)
	}
}
