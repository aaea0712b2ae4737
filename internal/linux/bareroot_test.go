package linux

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBareRootPastTheUmask: whatever umask the node was started with, the ids of sandboxes get to what is in the bare
// root.
func TestBareRootPastTheUmask(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	modes := map[string]uint32{}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its mounts and umask
		failed <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			unix.Umask(0o177)
			if err := BareRoot(); err != nil {
				return err
			}
			for _, path := range []string{"/dev", "/proc", "/sys", "/tmp", "/dev/null"} {
				var st unix.Stat_t
				if err := unix.Stat(path, &st); err != nil {
					return err
				}
				modes[path] = st.Mode & 0o777
			}
			return nil
		}()
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/dev", "/proc", "/sys", "/tmp"} {
		if modes[path]&0o555 != 0o555 {
			t.Errorf("%s has mode %o", path, modes[path])
		}
	}
	if modes["/dev/null"] != 0o666 {
		t.Errorf("/dev/null has mode %o", modes["/dev/null"])
	}
}
