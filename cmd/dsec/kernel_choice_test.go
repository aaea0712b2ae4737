package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/backend/microvm/kernel/kerneltest"
	"github.com/opendsec/dsec/sandbox"
)

// kernels makes a cache of this test's own.
type kernels struct {
	t     *testing.T
	cache string
}

func newKernels(t *testing.T) kernels {
	cache := t.TempDir()
	t.Setenv("DSEC_CACHE", cache)
	return kernels{t, cache}
}

// debian puts Debian's kernel into it.
func (k kernels) debian(version string) string {
	k.t.Helper()
	image := filepath.Join(k.cache, "kernel", "debian", "boot", "vmlinuz-"+version)
	if err := errors.Join(os.MkdirAll(filepath.Dir(image), 0o755), os.WriteFile(image, []byte("kernel"), 0o644),
		os.WriteFile(filepath.Join(k.cache, "kernel", "trixie-linux-image-cloud-amd64"), []byte("debian\n"), 0o644)); err != nil {
		k.t.Fatal(err)
	}
	return filepath.Join(k.cache, "kernel", "debian")
}

// built puts one of this program's configuration into it.
func (k kernels) built(version string) string {
	k.t.Helper()
	dir, err := kerneltest.Put(k.cache, version, "gcc 12")
	if err != nil {
		k.t.Fatal(err)
	}
	return dir
}

// want looks at what is chosen: a directory, or an error with these words.
func (k kernels) want(asked, dir, words string) {
	k.t.Helper()
	r, err := chooseKernel(asked)
	switch {
	case words != "":
		if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), words) {
			k.t.Errorf("kernel=%s: %v, %v; want an error with %q", asked, r, err, words)
		}
	case err != nil || r.Dir != dir:
		k.t.Errorf("kernel=%s: %+v, %v; want %s", asked, r, err, dir)
	}
}

// TestChooseKernel: what each word of --opt kernel means, with more and more kernels there.
func TestChooseKernel(t *testing.T) {
	k := newKernels(t)
	k.want("", "", "run `dsec kernel install`, or build one with `make kernel`")
	k.want(kernelDebian, "", "run `dsec kernel install`")
	k.want(kernelOwn, "", "run `make kernel`")
	k.want(k.cache, "", "no kernel in "+k.cache)

	debian := k.debian("6.12.100+deb13-cloud-amd64")
	k.want("", debian, "")
	k.want(kernelDebian, debian, "")
	k.want(kernelOwn, "", "run `make kernel`")
	k.want(filepath.Join(k.cache, "kernel"), debian, "")

	// One of another configuration is taken by its name alone.
	older := k.built("6.12.117")
	other := filepath.Join(k.cache, "kernel-own-6.12.117-0123456789")
	if err := os.Rename(older, other); err != nil {
		t.Fatal(err)
	}
	k.want("", debian, "")
	k.want(kernelOwn, "", other+" is of another configuration: run `make kernel`")
	k.want(other, other, "")

	own := k.built("6.12.99")
	k.want("", own, "")
	k.want(kernelOwn, own, "")
	k.want(kernelDebian, debian, "")
	newer := k.built("6.12.101")
	k.want("", newer, "")
	k.want(own, own, "")

	// Half of one is none.
	image := filepath.Join(newer, "boot", "vmlinux-6.12.101-dsec")
	if err := os.Truncate(image, 124); err != nil {
		t.Fatal(err)
	}
	k.want("", own, "")
	if err := os.RemoveAll(own); err != nil {
		t.Fatal(err)
	}
	k.want("", debian, "")
}

// TestKernelOpt: which words there are.
func TestKernelOpt(t *testing.T) {
	for asked, want := range map[string]bool{"": true, "own": true, "debian": true, "/var/cache/x": true, "x/y": false, "./own": false, "Own": false} {
		err := checkKernelOpt(asked)
		if (err == nil) != want || err != nil && !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("kernel=%s: %v", asked, err)
		}
	}
}

// TestDoctorNode: doctor looks at the kernel that the node takes which runs on the directory, and says what it has taken before.
func TestDoctorNode(t *testing.T) {
	k := newKernels(t)
	debian, state := k.debian("6.12.118+deb13-cloud-amd64"), t.TempDir()
	k.built("6.12.117")
	wantDetail := func(want string) {
		t.Helper()
		if r := runningNode(state).machineKernel(); !r.Have || r.Detail != want {
			t.Errorf("%+v, want %q", r, want)
		}
	}
	const own = "6.12.117-dsec, built here"
	const newer = "; Debian's is newer, 6.12.118+deb13-cloud-amd64: dsec kernel build --update"
	wantDetail(own + newer)
	d := stateDir(state)
	if err := os.MkdirAll(d.path("run", "vm"), 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := lockFile(d.path("lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := d.writeUp(upState{Opts: []string{"kernel=own"}}); err != nil {
		t.Fatal(err)
	}
	wantDetail(own + " (the node's --opt kernel=own)" + newer)
	taken := `{"version": "6.12.118+deb13-cloud-amd64", "dir": "` + debian + `"}`
	if err := os.WriteFile(d.path("run", "vm", "kernel.json"), []byte(taken), 0o600); err != nil {
		t.Fatal(err)
	}
	const before = "; the node's microVMs boot 6.12.118+deb13-cloud-amd64 in "
	wantDetail(own + " (the node's --opt kernel=own)" + before + debian + " until its edge starts again" + newer)
	if err := d.writeUp(upState{Opts: []string{"kernel=debian"}}); err != nil {
		t.Fatal(err)
	}
	wantDetail("6.12.118+deb13-cloud-amd64, Debian's (the node's --opt kernel=debian); built: 6.12.117-dsec (--opt kernel=own)")
	if r := runningNode(state).machineMemory(); r.Have || !strings.Contains(r.Detail, "kernel 6.12.118+deb13-cloud-amd64 lacks") {
		t.Errorf("%+v", r)
	}
}
