package linux

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// bareDevices are the device nodes in a bare root: name, major, minor.
var bareDevices = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

// BareRoot gives the calling thread, which must be locked to its goroutine, a mount namespace with nothing in it but
// what a new sandbox is prepared from: /proc and /sys as the host has them, a few device nodes, an empty /tmp. What is
// cloned from this thread copies these few mounts instead of all of the host's, and drops them again as fast.
func BareRoot() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mounts: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	const dir = "/tmp"
	if err := unix.Mount("bare", dir, "tmpfs", unix.MS_NOSUID, "mode=755,size=64k"); err != nil {
		return fmt.Errorf("mount bare root: %w", err)
	}
	for _, d := range []string{"proc", "sys", "dev", "tmp"} {
		err := unix.Mkdir(filepath.Join(dir, d), 0o755)
		if err == nil {
			err = unix.Chmod(filepath.Join(dir, d), 0o755) // past the umask: sandboxes' ids must get through
		}
		if err != nil {
			return fmt.Errorf("make bare root's /%s: %w", d, err)
		}
	}
	for _, fs := range []struct{ name, at string }{{"proc", "proc"}, {"sysfs", "sys"}} {
		if err := unix.Mount(fs.name, filepath.Join(dir, fs.at), fs.name, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount bare root's %s: %w", fs.name, err)
		}
	}
	for _, d := range bareDevices {
		path := filepath.Join(dir, "dev", d.name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("make device %s: %w", d.name, err)
		}
		if err := unix.Chmod(path, 0o666); err != nil { // past the umask
			return fmt.Errorf("make device %s: %w", d.name, err)
		}
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open device %s: %w", d.name, err)
		}
		unix.Close(fd)
	}
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("enter bare root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's tree: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID, ""); err != nil {
		return fmt.Errorf("protect bare root: %w", err)
	}
	return nil
}
