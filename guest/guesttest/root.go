package guesttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Root makes a detached overlay over the host's own files, seen with the sandbox's ids, and an empty upper
// layer. upper is the host's path of the upper layer: write files there before claiming. The descriptor is
// closed when the test ends.
func Root(t testing.TB) (root *os.File, upper string) {
	t.Helper()
	dir := tempDir(t)
	upper = filepath.Join(dir, "upper")
	work := filepath.Join(dir, "work")
	for _, d := range []string{upper, work} {
		must(t, os.Mkdir(d, 0o755))
		must(t, os.Chown(d, BaseID, BaseID))
	}
	ns := userNamespace(t)
	defer ns.Close()
	lower, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	must(t, err)
	defer unix.Close(lower)
	must(t, unix.MountSetattr(lower, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd()),
	}))
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	must(t, err)
	defer unix.Close(fs)
	must(t, unix.FsconfigSetFd(fs, "lowerdir+", lower))
	must(t, unix.FsconfigSetString(fs, "upperdir", upper))
	must(t, unix.FsconfigSetString(fs, "workdir", work))
	must(t, unix.FsconfigCreate(fs))
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV)
	must(t, err)
	root = os.NewFile(uintptr(fd), "root")
	t.Cleanup(func() { root.Close() })
	return root, upper
}

// tempDir is a directory that the sandbox's root can reach, unlike t.TempDir's.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "guesttest-")
	must(t, err)
	must(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	return dir
}

func mappings() []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: 0, HostID: BaseID, Size: IDs}}
}

// userNamespace makes a user namespace with the sandboxes' mapping, for idmapped mounts.
func userNamespace(t testing.TB) *os.File {
	t.Helper()
	cmd := exec.Command("/bin/cat")
	in, err := cmd.StdinPipe()
	must(t, err)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER, UidMappings: mappings(), GidMappings: mappings(),
	}
	must(t, cmd.Start())
	f, err := os.Open("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/user")
	in.Close()
	cmd.Wait()
	must(t, err)
	return f
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
