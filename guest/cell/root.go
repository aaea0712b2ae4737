package cell

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// callDir is where a cell's own files lie; the other places that programs write to are links into it.
const callDir = "/call"

// devices of a cell: name, major, minor.
var devices = []struct {
	name         string
	major, minor uint32
}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}}

// links of a cell's root, by where they lie.
var links = [][2]string{
	{"tmp", "call/tmp"}, {"var/tmp", "../call/tmp"},
}

// devLinks are those in /dev.
var devLinks = [][2]string{
	{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"},
	{"shm", "../call/shm"},
}

// enterRoot gives the calling thread a mount namespace in which the runtime's environment is the root and there is
// nothing else. Threads made from here on have it too.
func enterRoot(c *Config) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return wrap("unshare mounts", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return wrap("make mounts private", err)
	}
	if err := unix.Mount("stage", c.Stage, "tmpfs", unix.MS_NOSUID, "mode=755,size=1m"); err != nil {
		return wrap("mount stage at "+c.Stage, err)
	}
	if err := unix.Chdir(c.Stage); err != nil {
		return wrap("enter stage", err)
	}
	if err := skeleton(); err != nil {
		return err
	}
	if err := stack(c.Layers); err != nil {
		return err
	}
	if err := makeDev("root/dev"); err != nil {
		return err
	}
	if err := unix.Chdir("root"); err != nil {
		return wrap("enter root", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return wrap("enter root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return wrap("leave the host's tree", err)
	}
	return wrap("enter root", unix.Chdir("/"))
}

// skeleton makes the topmost layer: mount points, and links for what programs expect to write to.
func skeleton() error {
	for _, d := range []string{"root", "skel", "skel/call", "skel/proc", "skel/dev", "skel/sys", "skel/var"} {
		if err := unix.Mkdir(d, 0o755); err != nil {
			return wrap("make "+d, err)
		}
	}
	for _, l := range links {
		if err := unix.Symlink(l[1], "skel/"+l[0]); err != nil {
			return wrap("link /"+l[0], err)
		}
	}
	return nil
}

// stack mounts the layers and an overlay of them, read-only. The overlay keeps them when they are gone from view.
func stack(layers []Layer) error {
	lower := "skel"
	for n := len(layers) - 1; n >= 0; n-- {
		dir := "l" + strconv.Itoa(n)
		if err := unix.Mkdir(dir, 0o755); err != nil {
			return wrap("make "+dir, err)
		}
		data := ""
		if layers[n].Data != "" {
			data = "device=" + layers[n].Data
		}
		if err := unix.Mount(layers[n].Meta, dir, "erofs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOATIME, data); err != nil {
			return wrap("mount layer "+layers[n].Meta, err)
		}
		lower += ":" + dir
	}
	const flags = unix.MS_RDONLY | unix.MS_NODEV | unix.MS_NOSUID | unix.MS_NOATIME
	return wrap("stack layers", unix.Mount("overlay", "root", "overlay", flags, "lowerdir="+lower))
}

// makeDev mounts a small /dev, which is read-only afterwards.
func makeDev(dir string) error {
	const flags = unix.MS_NOSUID | unix.MS_NOEXEC
	if err := unix.Mount("dev", dir, "tmpfs", flags, "mode=755,size=64k"); err != nil {
		return wrap("mount /dev", err)
	}
	for _, d := range devices {
		path := dir + "/" + d.name
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return wrap("make /dev/"+d.name, err)
		}
	}
	for _, l := range devLinks {
		if err := unix.Symlink(l[1], dir+"/"+l[0]); err != nil {
			return wrap("link /dev/"+l[0], err)
		}
	}
	return wrap("protect /dev", unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY|flags, ""))
}

// searchPath is where programs are looked for.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin"

// lookPath finds a program in the runtime's environment; "" if it is not there.
func lookPath(name string) string {
	if strings.ContainsRune(name, '/') {
		return name
	}
	for dir := range strings.SplitSeq(searchPath, ":") {
		path := dir + "/" + name
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0 {
			return path
		}
	}
	return ""
}

// stepError avoids package fmt, which dsec-init does without.
type stepError struct {
	what string
	err  error
}

// wrap says what failed; nil stays nil.
func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return &stepError{what, err}
}

func (e *stepError) Error() string { return e.what + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }
