package feature

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/opendsec/dsec/internal/fuse"
	"github.com/opendsec/dsec/internal/linux"
)

// All features, in the order in which they are shown.
func All() []Feature { return append(general(), Network()...) }

func general() []Feature {
	return []Feature{
		{"Linux 6.12", "6.12", Required, "too old for the container backend", kernel},
		{"root", "", Required, "namespaces, mounts and control groups cannot be made", root},
		{"user namespaces", "3.8", Required, "no isolation of ids: no containers", file("/proc/self/ns/user")},
		{"overlayfs", "", Required, "no writable layers over shared ones: no containers", filesystem("overlay")},
		{"EROFS from plain files", "6.12", Required, "layers cannot be mounted: no containers", filesystem("erofs")},
		{"idmapped mounts", "5.12; EROFS 5.19", Required, "layers cannot be shared between id ranges", idmapped},
		{"btrfs", "6.7 for simple quotas", Required, "no writable-layer pool: no disk limits, no snapshots", filesystem("btrfs")},
		{"mkfs.btrfs", "package btrfs-progs", Required, "a new writable-layer pool cannot be made", tool("mkfs.btrfs")},
		{"loop devices", "", Required, "the pool cannot lie in a file", device("/dev/loop-control")},
		{"cgroup v2 tree", "4.5; kill 5.14", Required, "process trees cannot be killed and frozen as one", cgroup2},
		{"memory, cpu, pids limits", "", Required, "limits cannot be set", controllers},
		{"quick moves between groups", "6.0", Wanted, "a command after a pause waits some 7 ms more for its control group", quickMoves},
		{"system-call filters", "3.5", Required, "the kernel's whole surface lies open to the code inside", seccomp},
		{"pidfd", "5.3", Required, "processes cannot be named for good", pidfd},
		{"overlays over detached mounts", "6.15", Wanted, "layers are attached in a mount namespace of the edge's while a root is composed: slower", detached},
		{"AppArmor", "package apparmor", Wanted, "one layer of confinement fewer against root inside", apparmor},
		{"Landlock", "5.13", Wanted, "one layer of confinement fewer", landlock},
		{"I/O pressure (PSI)", "4.20", Wanted, "pressure is guessed from usage", file("/proc/pressure/memory")},
		{"RLIMIT_NOFILE of 20,000 and more", "", Wanted, "fewer sandboxes at once", nofile},
		{"types of the kernel for eBPF (BTF)", "5.4", Later, "eBPF programs fit one kernel only", bpf},
		{"FUSE whose server may die", "6.9", Wanted, "layers cannot be read on demand: no S3 stores", fuseResend},
		{"KVM", "", Wanted, "VMs run emulated: ten times slower and more", kvm},
		{"QEMU", "package qemu-system-x86", Wanted, "no VMs", tool("qemu-system-x86_64")},
		{"TUN/TAP", "", Later, "VMs have no network", device("/dev/net/tun")},
	}
}

func kernel() (string, error) {
	v, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "", err
	}
	s := strings.TrimSpace(string(v))
	if !linux.KernelAtLeast(6, 12) {
		return "", fmt.Errorf("the kernel is %s", s)
	}
	return s, nil
}

func root() (string, error) {
	if os.Geteuid() != 0 {
		return "", errors.New("not root")
	}
	return "", nil
}

func file(path string) func() (string, error) {
	return func() (string, error) {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s: %w", path, errAbsent)
		}
		return "", nil
	}
}

// device tells whether a device can be opened: its name alone says nothing about the driver behind it.
func device(path string) func() (string, error) {
	return func() (string, error) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return "", err
		}
		return "", f.Close()
	}
}

func tool(name string) func() (string, error) {
	return func() (string, error) {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", errors.New("not installed")
		}
		return path, nil
	}
}

func filesystem(name string) func() (string, error) {
	return func() (string, error) {
		b, err := os.ReadFile("/proc/filesystems")
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 0 && f[len(f)-1] == name {
				return "", nil
			}
		}
		// It may be a module that nobody has asked for yet: fsopen asks.
		if err := linux.TryFilesystem(name); err != nil {
			return "", errors.New("the kernel does not know it")
		}
		return "module", nil
	}
}

func idmapped() (string, error) { return "", linux.TryIdmappedMount() }

func detached() (string, error) { return "", linux.TryDetachedOverlay() }

func fuseResend() (string, error) { return "", fuse.Probe() }

func kvm() (string, error) { return "", linux.TryKVM() }

func cgroup2() (string, error) {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1], nil
		}
	}
	return "", errors.New("not mounted")
}

// controllers finds memory, cpu and pids in the v2 tree or as v1 hierarchies.
func controllers() (string, error) {
	dir, err := cgroup2()
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(dir + "/cgroup.controllers")
	if err != nil {
		return "", err
	}
	have := " " + strings.TrimSpace(string(b)) + " "
	mode := "pure v2"
	m, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for _, c := range []string{"memory", "cpu", "pids"} {
		if strings.Contains(have, " "+c+" ") {
			continue
		}
		if !strings.Contains(string(m), ":"+c+":") && !strings.Contains(string(m), ","+c+":") && !strings.Contains(string(m), ":"+c+",") {
			return "", fmt.Errorf("controller %s is in neither tree", c)
		}
		mode = "hybrid v1/v2"
	}
	return mode, nil
}

func quickMoves() (string, error) { return "favordynmods", linux.TryGroupMoves() }

func seccomp() (string, error) { return file("/proc/sys/kernel/seccomp/actions_avail")() }

func pidfd() (string, error) {
	p, err := linux.OpenPID(os.Getpid())
	if err != nil {
		return "", err
	}
	return "", p.Close()
}

func apparmor() (string, error) {
	b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	if err != nil || !strings.HasPrefix(string(b), "Y") {
		return "", errors.New("the kernel does not run it (boot with apparmor=1 security=apparmor)")
	}
	if _, err := os.Stat("/sys/kernel/security/apparmor/profiles"); err != nil {
		return "", errors.New("securityfs is not mounted")
	}
	return tool("apparmor_parser")()
}

func landlock() (string, error) {
	n, err := linux.LandlockABI()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("ABI %d", n), nil
}

func nofile() (string, error) {
	n, err := linux.FileLimit()
	if err != nil {
		return "", err
	}
	if n < 20000 {
		return "", fmt.Errorf("a process may have %d files open", n)
	}
	return fmt.Sprint(n), nil
}

func bpf() (string, error) { return file("/sys/kernel/btf/vmlinux")() }
