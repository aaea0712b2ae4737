package main

import (
	"fmt"
	"path/filepath"

	"github.com/opendsec/dsec/backend/microvm/kernel"
	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/sandbox"
)

// Kernels of microVMs by --opt kernel, besides the directory of one.
const (
	kernelOwn    = "own"    // built here, of this program's configuration: the newest
	kernelDebian = "debian" // in kernelDir
)

// checkKernelOpt refuses what --opt kernel cannot mean. It looks for no kernel.
func checkKernelOpt(asked string) error {
	switch {
	case asked == "", asked == kernelOwn, asked == kernelDebian, filepath.IsAbs(asked):
		return nil
	}
	return fmt.Errorf("--opt kernel=%s: %w: want %s, %s, or the absolute path of a kernel's directory (see `dsec kernel ls`)", asked, sandbox.ErrInvalid, kernelOwn, kernelDebian)
}

// chooseKernel finds the kernel of the microVMs of a node with --opt kernel=asked; "" = the own one if one was built, else
// Debian's. Error: sandbox.ErrUnsupported, with what to run.
func chooseKernel(asked string) (*debkernel.Release, error) {
	switch asked {
	case "", kernelOwn:
		if r := kernel.Newest(cacheDir()); r != nil {
			return r, nil
		}
		if asked == kernelOwn {
			return nil, noOwnKernel()
		}
		fallthrough
	case kernelDebian:
		r, err := debkernel.Find(&debkernel.Options{Cache: kernelDir()})
		if err != nil {
			return nil, fmt.Errorf("%w: no kernel in %s: run `dsec kernel install`, or build one with `make kernel`", sandbox.ErrUnsupported, kernelDir())
		}
		return r, nil
	}
	r, err := debkernel.Find(&debkernel.Options{Cache: asked})
	if err != nil {
		return nil, fmt.Errorf("%w: no kernel in %s: --opt kernel names a directory of `dsec kernel ls`, or of `dsec kernel install --dir`", sandbox.ErrUnsupported, asked)
	}
	return r, nil
}

// noOwnKernel says why none is fit.
func noOwnKernel() error {
	list := kernel.List(cacheDir())
	if len(list) == 0 {
		return fmt.Errorf("%w: no own kernel in %s: run `make kernel` (or `dsec kernel build`)", sandbox.ErrUnsupported, cacheDir())
	}
	last := list[len(list)-1]
	return fmt.Errorf("%w: the own kernel in %s is %s: run `make kernel` (or `dsec kernel build`)", sandbox.ErrUnsupported, last.Dir, kernel.Unfit(last))
}

// presentKernel refuses --opt kernel=own where no own kernel was built: whoever asks for it is to know at once. An edge that is
// started again, by a program with another configuration perhaps, serves all the same, and says so to who asks for a machine.
func presentKernel(asked string) error {
	if asked != kernelOwn {
		return nil
	}
	if _, err := chooseKernel(asked); err != nil {
		return fmt.Errorf("--opt kernel=%s: %w", asked, err)
	}
	return nil
}

// kernelText is a kernel as people are told of it.
func kernelText(r *debkernel.Release) string {
	if r.Own {
		return r.Version + ", built here"
	}
	return r.Version + ", Debian's"
}
