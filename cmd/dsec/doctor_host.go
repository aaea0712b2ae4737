package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

func init() {
	doctorProbes = append(doctorProbes, kernelFeatures, cgroupFeatures, filesystemFeatures, isolationFeatures, vmFeatures, toolFeatures)
}

func readLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// yes makes a feature of a plain fact.
func yes(name string, ok bool, want, missing string, required bool) feature {
	have := "no"
	if ok {
		have = "yes"
	}
	return feature{Name: name, OK: ok, Have: have, Want: want, Missing: missing, Required: required}
}

// kernelAtLeast compares "6.18.2-foo" with a version.
func kernelAtLeast(release string, major, minor int) bool {
	var a, b int
	if _, err := fmt.Sscanf(release, "%d.%d", &a, &b); err != nil {
		return false
	}
	return a > major || a == major && b >= minor
}

func kernelFeatures() []feature {
	r := readLine("/proc/sys/kernel/osrelease")
	pidMax, _ := strconv.Atoi(readLine("/proc/sys/kernel/pid_max"))
	return []feature{
		{Name: "kernel", OK: kernelAtLeast(r, 6, 12), Have: r, Want: "6.12", Missing: "EROFS from plain files: no container can be composed", Required: true},
		{Name: "overlay on descriptors", OK: kernelAtLeast(r, 6, 13), Have: r, Want: "6.13", Missing: "layers are attached in the edge's own mount namespace first (slower creation)"},
		{Name: "overlay on detached mounts", OK: kernelAtLeast(r, 6, 15), Have: r, Want: "6.15", Missing: "layers are attached in the edge's own mount namespace first (slower creation)"},
		{Name: "root", OK: os.Geteuid() == 0, Have: "uid " + strconv.Itoa(os.Geteuid()), Want: "uid 0", Missing: "`dsec up` must run as root", Required: false},
		{Name: "pid_max", OK: pidMax >= 100000, Have: strconv.Itoa(pidMax), Want: "100000", Missing: "about one sandbox fewer for every 8 pids below (raise kernel.pid_max)"},
	}
}

func cgroupFeatures() []feature {
	v2 := exists("/sys/fs/cgroup/cgroup.controllers")
	hybrid := exists("/sys/fs/cgroup/unified/cgroup.procs")
	mode := "none"
	switch {
	case v2:
		mode = "v2"
	case hybrid:
		mode = "hybrid v1/v2"
	case exists("/sys/fs/cgroup/memory"):
		mode = "v1"
	}
	out := []feature{
		{Name: "cgroups", OK: v2 || hybrid, Have: mode, Want: "v2 or hybrid", Missing: "no limits and no freezing: no containers", Required: true},
		{Name: "cgroup v2 controllers", OK: v2, Have: mode, Want: "v2", Missing: "v1 controllers are used: no memory.high, no memory.reclaim, memory kills are counted per sandbox"},
	}
	have := map[string]bool{}
	for _, c := range strings.Fields(readLine("/sys/fs/cgroup/cgroup.controllers")) {
		have[c] = true
	}
	for _, c := range []string{"memory", "cpu", "pids", "io"} {
		v1 := c
		if c == "io" {
			v1 = "blkio"
		}
		ok := have[c] || !v2 && exists("/sys/fs/cgroup/"+v1)
		out = append(out, yes("controller "+c, ok, "yes", "no limit on "+c, c == "memory" || c == "pids"))
	}
	return out
}

func filesystemFeatures() []feature {
	known := map[string]bool{}
	for _, line := range strings.Split(readLine("/proc/filesystems"), "\n") {
		f := strings.Fields(line)
		if len(f) > 0 {
			known[f[len(f)-1]] = true
		}
	}
	// A module that is not loaded yet counts: mounting loads it.
	has := func(name string) bool {
		return known[name] || exists("/sys/module/"+name) || moduleOnDisk(name)
	}
	return []feature{
		yes("overlay", has("overlay"), "yes", "layers cannot be stacked", true),
		yes("erofs", has("erofs"), "yes", "layers cannot be mounted", true),
		yes("btrfs", has("btrfs"), "yes", "the pool of writable layers has no snapshots and no limits: live packing is unsupported", true),
		yes("fuse", has("fuse") && exists("/dev/fuse"), "yes", "layers must be complete on the node: no lazy loading", false),
		yes("loop devices", exists("/dev/loop-control"), "yes", "the pool needs a btrfs partition", false),
	}
}

// moduleOnDisk looks for a module in the tables that depmod wrote.
func moduleOnDisk(name string) bool {
	r := readLine("/proc/sys/kernel/osrelease")
	for _, table := range []string{"modules.dep", "modules.builtin"} {
		b, err := os.ReadFile("/lib/modules/" + r + "/" + table)
		if err == nil && (strings.Contains(string(b), "/"+name+".ko")) {
			return true
		}
	}
	return false
}

func isolationFeatures() []feature {
	var out []feature
	for _, ns := range []string{"user", "mnt", "pid", "net", "uts", "ipc", "cgroup"} {
		out = append(out, yes("namespace "+ns, exists("/proc/self/ns/"+ns), "yes", "no isolation of "+ns, true))
	}
	limit, err := strconv.Atoi(readLine("/proc/sys/user/max_user_namespaces"))
	lsm := readLine("/sys/kernel/security/lsm")
	return append(out,
		feature{Name: "user namespaces allowed", OK: err == nil && limit > 0, Have: strconv.Itoa(limit), Want: "above the number of sandboxes", Missing: "no containers (raise user.max_user_namespaces)", Required: true},
		yes("seccomp", exists("/proc/sys/kernel/seccomp/actions_avail"), "yes", "no system-call filter: no containers", true),
		yes("AppArmor", strings.Contains(lsm, "apparmor") || readLine("/sys/module/apparmor/parameters/enabled") == "Y", "yes", "one layer of confinement fewer; user namespaces, capabilities, seccomp and masks remain", false),
		yes("Landlock", strings.Contains(lsm, "landlock"), "yes", "one layer of confinement fewer", false),
	)
}

func vmFeatures() []feature {
	return []feature{
		yes("KVM", exists("/dev/kvm"), "yes", "virtual machines are emulated: slow", false),
		yes("vhost-vsock", exists("/dev/vhost-vsock"), "yes", "guests are reached by virtio-serial instead", false),
	}
}

func toolFeatures() []feature {
	var out []feature
	for _, t := range []struct{ name, cost string }{
		{"mkfs.btrfs", "a pool file cannot be made (apt install btrfs-progs)"},
		{"qemu-system-x86_64", "no virtual machines (apt install qemu-system-x86)"},
		{"mmdebstrap", "`make demo` makes its base another way (apt install mmdebstrap)"},
	} {
		path, err := exec.LookPath(t.name)
		have := path
		if err != nil {
			have = "no"
		}
		out = append(out, feature{Name: t.name, OK: err == nil, Have: have, Want: "installed", Missing: t.cost})
	}
	return out
}
