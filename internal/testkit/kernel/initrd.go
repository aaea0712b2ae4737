package kernel

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opendsec/dsec/internal/debkernel"
)

// bootModules are what it takes to reach the root disk, with what they depend on first.
var bootModules = []string{"virtio_blk"}

// initrd makes the initial file system: the first program and the disk's driver.
func initrd(ctx context.Context, r *Release, init, path string) error {
	var b bytes.Buffer
	a := &debkernel.Archive{W: &b}
	prog, err := os.ReadFile(init)
	if err != nil {
		return err
	}
	for _, d := range []string{"dev", "root", strings.TrimPrefix(ModuleDir, "/")} {
		a.Add(d, 0o040755, nil)
	}
	a.Add("init", 0o100755, prog)
	for i, name := range bootModules {
		files, err := filepath.Glob(filepath.Join(r.ModulesDir(), "kernel/drivers/*", name+".ko*"))
		if err != nil || len(files) > 1 {
			return fmt.Errorf("module %s: %d files, %v", name, len(files), err)
		}
		if len(files) == 0 {
			continue // built in
		}
		ko, err := debkernel.Decompress(ctx, files[0])
		if err != nil {
			return err
		}
		a.Add(fmt.Sprintf("%s/%02d-%s.ko", strings.TrimPrefix(ModuleDir, "/"), i, name), 0o100644, ko)
	}
	a.End()
	return os.WriteFile(path, b.Bytes(), 0o600)
}
