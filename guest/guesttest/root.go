package guesttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/opendsec/dsec/internal/linux"
)

// mounts is the test process's place to make mounts.
var mounts = sync.OnceValues(func() (*linux.MountSpace, error) {
	var err error
	if mountsDir, err = os.MkdirTemp("", "guesttest-mnt-"); err != nil {
		return nil, err
	}
	return linux.OpenMountSpace(mountsDir, nil)
})

// mountsDir is removed by Cleanup: without it the mounts would be gone.
var mountsDir string

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
	space, err := mounts()
	must(t, err)
	lower, err := space.Clone(nil, "/", 0, ns)
	must(t, err)
	defer lower.Close()
	writable, err := space.Clone(nil, dir, 0, nil)
	must(t, err)
	defer writable.Close()
	up, err := linux.OpenAt(writable, "upper")
	must(t, err)
	defer up.Close()
	wk, err := linux.OpenAt(writable, "work")
	must(t, err)
	defer wk.Close()
	root, err = space.NewOverlay(&linux.Overlay{Lower: []*os.File{lower}, Writable: writable, Upper: up, Work: wk}, linux.NoDev, 0)
	must(t, err)
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
