package debkernel

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Module is a kernel module, uncompressed.
type Module struct {
	Name string
	Data []byte
}

// Modules returns the named modules and all that they depend on, those first, in an order in which they can be loaded.
// Names that the kernel has no file for are left out: they are built in.
func (r *Release) Modules(ctx context.Context, names ...string) ([]Module, error) {
	if r.Own {
		return nil, nil // all is built in
	}
	files := map[string]string{}
	err := filepath.WalkDir(filepath.Join(r.ModulesDir(), "kernel"), func(path string, e fs.DirEntry, err error) error {
		if base, _, ok := strings.Cut(filepath.Base(path), ".ko"); ok && err == nil && e.Type().IsRegular() {
			files[strings.ReplaceAll(base, "-", "_")] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("modules of kernel %s: %w", r.Version, err)
	}
	var out []Module
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		name = strings.ReplaceAll(name, "-", "_")
		if seen[name] || files[name] == "" {
			return nil
		}
		seen[name] = true
		data, err := Decompress(ctx, files[name])
		if err != nil {
			return err
		}
		deps, err := depends(data)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, d := range deps {
			if err := add(d); err != nil {
				return err
			}
		}
		out = append(out, Module{name, data})
		return nil
	}
	for _, n := range names {
		if err := add(n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// depends reads what a module says that it needs; packages do not bring the index that depmod makes of it.
func depends(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("no .modinfo")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for _, kv := range strings.Split(string(info), "\x00") {
		if list, ok := strings.CutPrefix(kv, "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}

// Decompress reads a module as the package has it. It needs xz, zstd or gzip.
func Decompress(ctx context.Context, path string) ([]byte, error) {
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
