package machine

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/machine/control"
)

// prepare makes the root of the sandbox, as a detached mount.
func prepare(p *control.Prepare, g *groups) (*os.File, error) {
	if err := reseed(p.Seed); err != nil {
		return nil, err
	}
	if err := setClock(p.Time); err != nil {
		return nil, err
	}
	if err := g.limit(p.Memory, p.Pids); err != nil {
		return nil, err
	}
	var lower []string // top first, as overlayfs wants
	for i, l := range p.Layers {
		dir := "/layers/" + strconv.Itoa(i)
		if err := mountLayer(dir, l); err != nil {
			return nil, fmt.Errorf("mount layer %d: %w", i, err)
		}
		lower = append([]string{strconv.Itoa(i)}, lower...)
	}
	disk, err := device(p.Disk)
	if err != nil {
		return nil, err
	}
	const own = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME
	if err := unix.Mount(disk, "/disk", "ext4", own&^unix.MS_NOSUID, ""); err != nil {
		return nil, fmt.Errorf("mount disk: %w", err)
	}
	for _, d := range []string{"/disk/upper", "/disk/work"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, err
		}
	}
	written, err := seedEtc("/disk/upper", len(p.Layers), p.Hostname, p.Network)
	if err != nil {
		return nil, fmt.Errorf("write /etc: %w", err)
	}
	// Relative names keep the options within the kernel's page however deep the stack is.
	if err := unix.Chdir("/layers"); err != nil {
		return nil, err
	}
	opts := "lowerdir=" + strings.Join(lower, ":") + ",upperdir=/disk/upper,workdir=/disk/work," +
		"redirect_dir=off,metacopy=off,index=off,xino=off,volatile"
	err = unix.Mount("overlay", "/root", "overlay", unix.MS_NODEV|unix.MS_NOATIME, opts)
	_ = unix.Chdir("/")
	if err != nil {
		return nil, fmt.Errorf("compose root: %w", err)
	}
	if !written {
		if err := writeEtc("/root", p.Hostname, p.Network); err != nil {
			return nil, fmt.Errorf("write /etc: %w", err)
		}
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/root", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("detach root: %w", err)
	}
	return os.NewFile(uintptr(fd), "root"), nil
}

func mountLayer(dir string, l control.Layer) error {
	if l.Memory != nil {
		return mountMemory(dir, l.Memory)
	}
	meta, err := device(l.Meta)
	if err != nil {
		return err
	}
	opts := ""
	if l.Data != "" {
		data, err := device(l.Data)
		if err != nil {
			return err
		}
		// Left out, the kernel would mount the metadata all the same and read wrong bytes.
		opts = "device=" + data
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(meta, dir, "erofs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOATIME, opts); err != nil {
		return invalid{err}
	}
	return nil
}

// setClock sets the time of day; 0 leaves it.
func setClock(ns int64) error {
	if ns <= 0 {
		return nil
	}
	tv := unix.NsecToTimeval(ns)
	if err := unix.Settimeofday(&tv); err != nil {
		return fmt.Errorf("set clock: %w", err)
	}
	return nil
}

// reseed mixes the node's randomness into the kernel's and makes it take effect at once: what booted the same way has
// drawn nothing yet.
func reseed(seed []byte) error {
	if len(seed) == 0 {
		return nil
	}
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// struct rand_pool_info: bits of entropy, size, bytes
	b := make([]byte, 8+len(seed))
	*(*int32)(unsafe.Pointer(&b[0])) = int32(len(seed) * 8)
	*(*int32)(unsafe.Pointer(&b[4])) = int32(len(seed))
	copy(b[8:], seed)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&b[0]))); e != 0 {
		return fmt.Errorf("add randomness: %w", e)
	}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDRESEEDCRNG, 0); e != 0 {
		return fmt.Errorf("reseed: %w", e)
	}
	return nil
}

// hostsName begins the line of a sandbox's own name in /etc/hosts.
const hostsName = "127.0.1.1\t"

// etcFiles are what a sandbox has in /etc from the start.
func etcFiles(hostname string, n *control.Network) map[string]string {
	return map[string]string{
		"hosts":       "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + hostsName + hostname + "\n",
		"hostname":    hostname + "\n",
		"resolv.conf": resolvConf(n),
	}
}

// openEtc opens /etc; -1 where the layers, or the sandbox, have something else than a directory there.
func openEtc(root string) (int, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	if err := unix.Mkdirat(dir, "etc", 0o755); err != nil && err != unix.EEXIST {
		return -1, err
	}
	etc, err := unix.Openat2(dir, "etc", &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err == unix.ELOOP || err == unix.ENOTDIR {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	return etc, nil
}

// seedEtc writes them into the writable layer before it lies over the others, which costs a fifth of replacing them in the
// overlay, beside the /etc of the topmost layer that has one. It does not where that is no plain directory.
func seedEtc(upper string, layers int, hostname string, n *control.Network) (bool, error) {
	mode, uid, gid := uint32(0o755), 0, 0
	for i := layers - 1; i >= 0; i-- {
		path := "/layers/" + strconv.Itoa(i) + "/etc"
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err == unix.ENOENT {
			continue
		} else if err != nil {
			return false, err
		}
		if attrs, err := unix.Llistxattr(path, nil); st.Mode&unix.S_IFMT != unix.S_IFDIR || err != nil || attrs > 0 {
			return false, nil
		}
		mode, uid, gid = st.Mode&0o7777, int(st.Uid), int(st.Gid)
		break
	}
	etc := upper + "/etc"
	if err := unix.Mkdir(etc, 0o700); err != nil {
		return false, err
	}
	for name, content := range etcFiles(hostname, n) { // root's, also where the directory would give them its group
		if err := os.WriteFile(etc+"/"+name, []byte(content), 0o644); err != nil {
			return false, err
		}
	}
	if err := unix.Lchown(etc, uid, gid); err != nil {
		return false, err
	}
	if err := unix.Chmod(etc, mode); err != nil { // past the umask, and after the owner, which takes set-id bits away
		return false, err
	}
	return true, nil
}

// writeEtc writes them. Where the layers have something else than a directory at /etc it writes nothing.
func writeEtc(root, hostname string, n *control.Network) error {
	etc, err := openEtc(root)
	if err != nil || etc < 0 {
		return err
	}
	defer unix.Close(etc)
	for name, content := range etcFiles(hostname, n) {
		_ = unix.Unlinkat(etc, name, 0) // what the image has there may be a link
		fd, err := unix.Openat(etc, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		if err == unix.EEXIST {
			continue // a directory: the image's own affair
		}
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), name)
		if _, err = f.WriteString(content); err == nil {
			err = f.Chown(0, 0) // also where the directory gives it its group
		}
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	}
	return nil
}
