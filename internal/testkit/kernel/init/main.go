// Command init is the first program of the machine in which the tests run on another kernel. It runs twice: from the
// initial file system, where it loads the disk's driver and enters the Debian tree; and there, where it runs the plan
// and powers the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/testkit/kernel"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: only for the machine of make test-kernel")
		os.Exit(2)
	}
	var err error
	if _, serr := os.Stat(kernel.ModuleDir); serr == nil {
		err = first()
	} else {
		err = second()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
	}
	syscall.Sync()
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

// newRoot is where the Debian tree is mounted at first.
const newRoot = "/root"

// first loads the modules and executes this program again in the Debian tree.
func first() error {
	if err := mount("dev", "/dev", "devtmpfs", 0, ""); err != nil {
		return err
	}
	mods, err := filepath.Glob(kernel.ModuleDir + "/*.ko")
	if err != nil {
		return err
	}
	sort.Strings(mods)
	for _, m := range mods {
		f, err := os.Open(m)
		if err != nil {
			return err
		}
		err = loadModule(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("load %s: %w", m, err)
		}
	}
	if err := waitFor(kernel.RootDisk); err != nil {
		return err
	}
	if err := mount(kernel.RootDisk, newRoot, "ext4", 0, ""); err != nil {
		return err
	}
	self := newRoot + "/run/kernel-init"
	if err := copyFile("/init", self); err != nil {
		return err
	}
	if err := mount("/dev", newRoot+"/dev", "", syscall.MS_MOVE, ""); err != nil {
		return err
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := mount(".", "/", "", syscall.MS_MOVE, ""); err != nil {
		return err
	}
	if err := syscall.Chroot("."); err != nil {
		return err
	}
	return syscall.Exec("/run/kernel-init", []string{"init"}, []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"})
}

// unit is the control group that tests run in, as a service with Delegate=yes would.
const unit = "/sys/fs/cgroup/test.service"

// second mounts what a system mounts and runs the plan.
func second() error {
	signal.Ignore(syscall.SIGHUP)
	for _, m := range []struct {
		source, dir, fs string
		flags           uintptr
		data            string
	}{
		{"proc", "/proc", "proc", 0, ""},
		{"sys", "/sys", "sysfs", 0, ""},
		{"security", "/sys/kernel/security", "securityfs", 0, ""},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""},
		{"devpts", "/dev/pts", "devpts", 0, "ptmxmode=0666,mode=0620,gid=5"},
		{"shm", "/dev/shm", "tmpfs", 0, "mode=1777"},
		{"run", "/run", "tmpfs", 0, "mode=755"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := mount(m.source, m.dir, m.fs, m.flags, m.data); err != nil {
			return err
		}
	}
	// Mounts are shared on every system that systemd starts.
	if err := mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""); err != nil {
		return err
	}
	out, err := os.OpenFile(kernel.Channel, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	for _, l := range [][2]string{{"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"}, {"/proc/self/fd/2", "/dev/stderr"}} {
		_ = os.Symlink(l[0], l[1])
	}
	_ = syscall.Sethostname([]byte("test-kernel"))
	version, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	if err := staticNodes(strings.TrimSpace(string(version))); err != nil {
		return err
	}
	// As systemd has it for services.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 1024, Max: 524288}); err != nil {
		return err
	}
	plan, err := readPlan()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s%s %s\n", kernel.Marker, kernel.Booted, strings.TrimSpace(string(version)))
	if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+memory +cpu +pids +io"), 0); err != nil {
		return err
	}
	for _, t := range plan.Tests {
		start := time.Now()
		fmt.Fprintf(out, "%s%s %s\n", kernel.Marker, kernel.Started, t.Package)
		code, err := run(&t, out)
		if err != nil {
			fmt.Fprintf(out, "%s: %v\n", t.Package, err)
		}
		fmt.Fprintf(out, "%s%s %s %d %.1f\n", kernel.Marker, kernel.Ended, t.Package, code, time.Since(start).Seconds())
	}
	fmt.Fprintf(out, "%s%s\n", kernel.Marker, kernel.Done)
	return nil
}

// readPlan mounts the disk with the tests where the source tree lies on the host, that of the layers, and the one that
// nodes have for their state.
func readPlan() (*kernel.Plan, error) {
	const tmp = "/run/tests"
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return nil, err
	}
	if err := mount(kernel.TestDisk, tmp, "ext4", 0, ""); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(tmp + "/" + kernel.PlanFile)
	if err != nil {
		return nil, err
	}
	p := &kernel.Plan{}
	if err := json.Unmarshal(b, p); err != nil {
		return nil, err
	}
	for _, m := range [][2]string{{kernel.TestDisk, p.Source}, {kernel.LayerDisk, p.Cache}} {
		if err := os.MkdirAll(m[1], 0o755); err != nil {
			return nil, err
		}
		if err := mount(m[0], m[1], "ext4", 0, ""); err != nil {
			return nil, err
		}
	}
	// As production has it: xfs with quotas of all kinds.
	if err := os.MkdirAll(p.Scratch, 0o755); err != nil {
		return nil, err
	}
	if err := mount(kernel.Scratch, p.Scratch, "xfs", 0, "uquota,gquota,pquota"); err != nil {
		return nil, err
	}
	return p, errors.Join(os.Chmod(p.Scratch, 0o777|os.ModeSticky), syscall.Unmount(tmp, 0))
}

// run runs one test binary in a control group of its own and returns its exit code; 128 and more: a signal.
func run(t *kernel.Test, out *os.File) (int, error) {
	if err := os.Mkdir(unit, 0o755); err != nil {
		return -1, err
	}
	defer removeGroups(unit)
	group, err := os.Open(unit)
	if err != nil {
		return -1, err
	}
	defer group.Close()
	null, err := os.Open("/dev/null")
	if err != nil {
		return -1, err
	}
	defer null.Close()
	pid, err := syscall.ForkExec(t.Binary, append([]string{t.Binary}, t.Args...), &syscall.ProcAttr{
		Dir: t.Dir, Env: append(os.Environ(), t.Env...), Files: []uintptr{null.Fd(), out.Fd(), out.Fd()},
		Sys: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd()), Setsid: true},
	})
	if err != nil {
		return -1, err
	}
	for { // orphans are ours to reap as well
		var ws syscall.WaitStatus
		p, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return -1, err
		case p == pid && ws.Signaled():
			return 128 + int(ws.Signal()), nil
		case p == pid:
			return ws.ExitStatus(), nil
		}
	}
}

// removeGroups ends what is left in a group and removes it with those below.
func removeGroups(dir string) {
	_ = os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		var ws syscall.WaitStatus
		_, _ = syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if b, err := os.ReadFile(dir + "/cgroup.events"); err != nil || strings.Contains(string(b), "populated 0") {
			break
		}
	}
	var dirs []string
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0; i-- {
		_ = os.Remove(dirs[i])
	}
}
