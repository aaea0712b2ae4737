package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"

	"golang.org/x/sys/unix"
)

// modulesDir is where the initial file system has modules: NN-name.ko, loaded in the order of their names.
const modulesDir = "/modules"

// manyDir is where those are, with the others, that a machine with many disks takes; Many is the argument that says so.
const (
	manyDir = "/many"
	Many    = "many"
)

// groupRoot is where a machine of ours has its control groups.
const groupRoot = "/sys/fs/cgroup"

// Control groups: dsec-init's and the commands'. An agent in a whole system sets them once, before all else.
var (
	initGroup = groupRoot + "/init"
	workGroup = groupRoot + "/work"
)

// mountAll makes the machine's own small system: a root that can be left again, which the kernel's first one cannot,
// and what the kernel shows.
func mountAll() error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := os.MkdirAll("/newroot", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("root", "/newroot", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=1m"); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	for _, m := range []struct {
		fs, dir string
		flags   uintptr
		opts    string
	}{
		{"devtmpfs", "dev", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=755"}, {"proc", "proc", flags, ""}, {"sysfs", "sys", flags, ""},
		{"cgroup2", "sys/fs/cgroup", flags, ""}, {"tmpfs", "run", flags, "mode=755,size=1m"},
	} {
		dir := filepath.Join("/newroot", m.dir)
		_ = os.MkdirAll(dir, 0o755) // in sysfs it is there
		if err := unix.Mount(m.fs, dir, m.fs, m.flags, m.opts); err != nil {
			return fmt.Errorf("mount %s: %w", m.fs, err)
		}
	}
	for _, d := range []string{"tmp", "layers", "disk", "root", "modules", "memory"} {
		if err := os.Mkdir("/newroot/"+d, 0o755); err != nil {
			return err
		}
	}
	// The modules are needed once more, below the new root.
	from := modulesDir
	if slices.Contains(os.Args, Many) {
		from = manyDir
	}
	if err := unix.Mount(from, "/newroot/modules", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind modules: %w", err)
	}
	if slices.Contains(os.Args, Memory) {
		if err := unix.Mount(memoryDir, "/newroot/memory", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind modules: %w", err)
		}
	}
	if err := unix.Chdir("/newroot"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	console, err := os.OpenFile("/dev/console", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	for fd := range 3 {
		if err := unix.Dup3(int(console.Fd()), fd, 0); err != nil {
			return err
		}
	}
	return nil
}

// loadModules loads what the initial file system brings.
func loadModules() error {
	if err := loadFrom(modulesDir); err != nil || !slices.Contains(os.Args, Memory) {
		return err
	}
	return loadFrom(memoryDir)
}

// loadFrom loads a directory's, and lets go of it.
func loadFrom(dir string) error {
	files, err := filepath.Glob(dir + "/*.ko")
	if err != nil {
		return err
	}
	sort.Strings(files)
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("load module %s: %w", filepath.Base(path), err)
		}
	}
	return unix.Unmount(dir, unix.MNT_DETACH)
}

// makeGroups makes the control groups of dsec-init and of commands.
func makeGroups() error {
	if err := os.WriteFile(groupRoot+"/cgroup.subtree_control", []byte("+memory +pids"), 0); err != nil {
		return fmt.Errorf("control groups: %w", err)
	}
	for _, d := range []string{initGroup, workGroup} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	// Descriptors are bounded by memory.
	const files = 1 << 20
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files})
}
