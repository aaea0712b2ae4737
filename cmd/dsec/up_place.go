package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// checkPlace refuses a state directory, which need not exist yet, from which the kernel would not mount layers.
// Only containers have any. Error: ErrUnsupported.
func checkPlace(dir, backend string) error {
	if backend != string(sandbox.BackendContainer) {
		return nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for at := abs; ; at = filepath.Dir(at) {
		ok, name, err := linux.TakesImages(at)
		if errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
			continue
		}
		if err != nil {
			return fmt.Errorf("state directory %s: %w", abs, err)
		}
		if !ok {
			return fmt.Errorf("state directory %s lies on %s: %w: layers (EROFS images in files) are mounted only from a file system on a block device: choose a --state on ext4, xfs or btrfs",
				abs, name, sandbox.ErrUnsupported)
		}
		return nil
	}
}
