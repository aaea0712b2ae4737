package confine

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// attack tries what a profile must refuse to root, and what it must not, and prints the outcome of each. It runs in a
// mount namespace of its own.
func attack() {
	runtime.LockOSThread()
	say := func(what string, err error) {
		if err == nil {
			fmt.Printf("%s: ok\n", what)
			return
		}
		for {
			u, ok := err.(interface{ Unwrap() error })
			if !ok {
				break
			}
			err = u.Unwrap()
		}
		fmt.Printf("%s: %v\n", what, err)
	}
	profile, err := os.ReadFile("/proc/thread-self/attr/apparmor/current")
	fmt.Printf("profile %s (%v)\n", strings.TrimSpace(string(profile)), err)
	fmt.Printf("profile %s\n", strings.TrimSpace(string(profile)))

	dir, err := os.MkdirTemp("", "attack-")
	say("make a directory", err)
	defer os.RemoveAll(dir)
	say("write a file", os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600))
	say("run a program", exec.Command("/bin/true").Run())
	say("own group", os.Chown(filepath.Join(dir, "f"), 1, 1))
	child := exec.Command("sleep", "100")
	if err := child.Start(); err == nil {
		say("signal its own child", child.Process.Kill())
		_ = child.Wait()
	}

	say("private", syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	err = syscall.Mount("tmpfs", dir, "tmpfs", 0, "")
	say("mount", err)
	say("remount", syscall.Mount("", "/proc", "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_NOSUID, ""))
	say("umount", syscall.Unmount("/dev/shm", syscall.MNT_DETACH))
	_ = os.Mkdir(filepath.Join(dir, "old"), 0o700)
	say("write /proc/sys/kernel/hostname", write("/proc/sys/kernel/hostname", hostname()))
	say("host name", syscall.Sethostname([]byte(hostname())))
	_, err = read("/proc/kcore")
	say("read /proc/kcore", err)
	say("write /proc/sysrq-trigger", write("/proc/sysrq-trigger", "h")) // prints help to the kernel's log
	say("write /sys", touchSys())
	victim, _ := strconv.Atoi(os.Getenv("CONFINE_ATTACK"))
	err = syscall.PtraceAttach(victim)
	say("ptrace", err)
	if err == nil {
		var ws syscall.WaitStatus
		_, _ = syscall.Wait4(victim, &ws, 0, nil)
		_ = syscall.PtraceDetach(victim)
	}
	say("kill", syscall.Kill(victim, syscall.SIGCONT))
	say("leave the profile", write("/proc/thread-self/attr/apparmor/exec", "exec unconfined"))
	say("device node's disk", openDisk())
	say("pivot_root", syscall.PivotRoot(dir, filepath.Join(dir, "old")))
}

func write(path, s string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(s)
	return err
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, 64)
	n, err := f.Read(b)
	return b[:n], err
}

func hostname() string { h, _ := os.Hostname(); return h }

// touchSys opens a file of /sys that root may write, and writes nothing.
func touchSys() error {
	f, err := os.OpenFile("/sys/kernel/mm/transparent_hugepage/enabled", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// openDisk opens a disk of the machine.
func openDisk() error {
	for _, pattern := range []string{"/dev/vd?", "/dev/sd?", "/dev/nvme?n?"} {
		if l, _ := filepath.Glob(pattern); len(l) > 0 {
			f, err := os.Open(l[0])
			if err != nil {
				return err
			}
			return f.Close()
		}
	}
	return fs.ErrNotExist
}
