package linux

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// MountSpace is where mounts are cloned and stacked into overlays.
//
// Since Linux 6.15 detached mounts are enough for that, and a MountSpace is nothing but the calls. Older kernels
// clone and stack only what is attached in the caller's mount namespace; there it is a thread with a mount namespace
// of its own, in which a tmpfs of ours holds the mount points. No other process sees them, and they end with the
// last holder of the namespace. What comes out (clones, overlays) is detached in both cases.
type MountSpace struct {
	thread *mountThread // nil: detached mounts will do
	ns     *os.File     // the thread's namespace
	root   *os.File     // its tmpfs
}

// areaName is the mount point, in the tmpfs, below which an overlay's parts lie while it is made.
const areaName = "area"

// OpenMountSpace opens a space of the kind that the kernel needs. dir is an empty directory of ours to put the tmpfs
// on; ns is the namespace of an earlier space (see Namespace), nil for a new one. Both matter on kernels below 6.15
// alone.
func OpenMountSpace(dir string, ns *os.File) (*MountSpace, error) {
	if ns == nil && TryDetachedOverlay() == nil {
		return &MountSpace{}, nil
	}
	return OpenAttachedMountSpace(dir, ns)
}

// OpenAttachedMountSpace opens a space for kernels that want their mounts attached; newer ones have no objection.
func OpenAttachedMountSpace(dir string, ns *os.File) (*MountSpace, error) {
	s := &MountSpace{}
	var err error
	if s.thread, err = newMountThread(ns); err != nil {
		return nil, fmt.Errorf("mount namespace: %w", err)
	}
	err = s.thread.do(func() error {
		var err error
		if s.ns, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
			return err
		}
		if ns != nil {
			if s.root, err = openTmpfs(dir); err != nil || s.root != nil {
				return errors.Join(err, s.clear())
			}
		}
		return s.makeRoot(dir)
	})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("mount namespace: %w", err)
	}
	return s, nil
}

// openTmpfs opens dir if a tmpfs is mounted there.
func openTmpfs(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		f.Close()
		return nil, err
	}
	return f, nil
}

// makeRoot mounts the tmpfs.
func (s *MountSpace) makeRoot(dir string) error {
	// Mounts of the host still come here; ours do not go there.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	m, err := NewMount("tmpfs", NoDev|NoSuid|NoExec, Option{Key: "mode", Value: "700"}, Option{Key: "size", Value: "1m"})
	if err != nil {
		return err
	}
	s.root = m
	if err := unix.MoveMount(int(m.Fd()), "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "mount tmpfs at", Path: dir, Err: err}
	}
	return MkdirAt(m, areaName, 0o700)
}

// clear detaches what an earlier process left in the middle of making an overlay.
func (s *MountSpace) clear() error {
	for {
		area, err := OpenAt(s.root, areaName)
		if errors.Is(err, os.ErrNotExist) {
			return MkdirAt(s.root, areaName, 0o700)
		}
		if err != nil {
			return err
		}
		err = detach(area)
		area.Close()
		if errors.Is(err, unix.EINVAL) {
			return nil // not a mount: the directory itself
		}
		if err != nil {
			return err
		}
	}
}

// Attached tells whether this kernel needs attached mounts.
func (s *MountSpace) Attached() bool { return s.thread != nil }

// Namespace is what keeps the mounts of the space alive, for a successor; nil when there is nothing to keep.
func (s *MountSpace) Namespace() *os.File { return s.ns }

// Keep makes a new detached mount one that Clone takes, until Drop of the same name.
func (s *MountSpace) Keep(name string, m *os.File) error {
	if s.thread == nil {
		return nil
	}
	return s.thread.do(func() error {
		if err := s.drop(name); err != nil {
			return err // one that a predecessor kept and nobody knows
		}
		if err := MkdirAt(s.root, name, 0o700); err != nil {
			return err
		}
		return attach(m, s.root, name)
	})
}

// Drop ends what Keep did; descriptors and clones of the mount stay usable. A name that is not kept is no error.
func (s *MountSpace) Drop(name string) error {
	if s.thread == nil {
		return nil
	}
	return s.thread.do(func() error { return s.drop(name) })
}

func (s *MountSpace) drop(name string) error {
	m, err := OpenAt(s.root, name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = detach(m)
	m.Close()
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := unix.Unlinkat(int(s.root.Fd()), name, unix.AT_REMOVEDIR); err != nil {
		return &os.PathError{Op: "remove", Path: name, Err: err}
	}
	return nil
}

// Clone is CloneMount of a kept mount, or of a path on the host (dir nil).
func (s *MountSpace) Clone(dir *os.File, path string, attr MountAttr, userns *os.File) (c *os.File, err error) {
	if s.thread == nil {
		return CloneMount(dir, path, attr, userns)
	}
	err = s.thread.do(func() error {
		c, err = CloneMount(dir, path, attr, userns)
		return err
	})
	return c, err
}

// Overlay is a stack of detached mounts: lower ones, top first, and a writable one with the directories upper and
// work in it.
type Overlay struct {
	Lower       []*os.File
	Writable    *os.File
	Upper, Work *os.File // beneath Writable
	Options     []Option
}

// NewOverlay makes a detached overlay; id is as in NewMountAs. The parts may be closed afterwards. Error: ErrNoWorkDir when
// the writable part has no room.
func (s *MountSpace) NewOverlay(o *Overlay, attr MountAttr, id uint32) (m *os.File, err error) {
	if s.thread == nil {
		m, err = NewMountAs("overlay", attr, id, o.options(func(key string, f *os.File) Option { return Option{Key: key, File: f} })...)
	} else {
		err = s.thread.do(func() error {
			m, err = s.attachedOverlay(o, attr, id)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	if err := writableOverlay(m); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// ErrNoWorkDir says that an overlay could not make its work directory. It is an ENOSPC to NoRoom.
var ErrNoWorkDir = fmt.Errorf("the writable layer has no room for overlayfs's work directory: %w", unix.ENOSPC)

// writableOverlay refuses an overlay that the kernel turned read-only: where it cannot make its work directory, the mount
// succeeds and a line in the kernel's log is all that tells.
func writableOverlay(m *os.File) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(m.Fd()), &st); err != nil {
		return &os.PathError{Op: "statfs", Path: m.Name(), Err: err}
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return ErrNoWorkDir
	}
	return nil
}

func (o *Overlay) options(dir func(key string, f *os.File) Option) []Option {
	opts := make([]Option, 0, len(o.Lower)+2+len(o.Options))
	for _, l := range o.Lower {
		opts = append(opts, dir("lowerdir+", l))
	}
	return append(append(opts, dir("upperdir", o.Upper), dir("workdir", o.Work)), o.Options...)
}

// attachedOverlay attaches the parts below one mount while the overlay is made, so that one call detaches them all.
// The overlay keeps private copies of them.
func (s *MountSpace) attachedOverlay(o *Overlay, attr MountAttr, id uint32) (*os.File, error) {
	area, err := CloneMount(s.root, areaName, 0, nil)
	if err != nil {
		return nil, err
	}
	defer area.Close()
	if err := attach(area, s.root, areaName); err != nil {
		return nil, err
	}
	defer func() { _ = detach(area) }()
	for i, m := range append([]*os.File{o.Writable}, o.Lower...) {
		name := strconv.Itoa(i)
		if err := unix.Mkdirat(int(area.Fd()), name, 0o700); err != nil && err != unix.EEXIST {
			return nil, &os.PathError{Op: "mkdirat", Path: areaName + "/" + name, Err: err}
		}
		if err := attach(m, area, name); err != nil {
			return nil, err
		}
	}
	// Below 6.13 there are no descriptors as layers; a descriptor's link names the directory as well, at any length
	// of its path.
	return NewMountAs("overlay", attr, id, o.options(func(key string, f *os.File) Option { return Option{Key: key, Value: fdPath(f)} })...)
}

func fdPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

func attach(m, dir *os.File, name string) error {
	if err := unix.MoveMount(int(m.Fd()), "", int(dir.Fd()), name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach %s: %w", m.Name(), err)
	}
	return nil
}

// detach takes a mount, named by a descriptor of its root, and those below it out of the namespace.
func detach(m *os.File) error {
	if err := unix.Unmount(fdPath(m), unix.MNT_DETACH); err != nil {
		return &os.PathError{Op: "unmount", Path: m.Name(), Err: err}
	}
	return nil
}

// Unmount drops everything that is kept, whoever may still hold the namespace.
func (s *MountSpace) Unmount() error {
	if s.thread == nil || s.root == nil {
		return nil
	}
	return s.thread.do(func() error { return detach(s.root) })
}

// Close ends the thread; the namespace ends with its last holder.
func (s *MountSpace) Close() {
	if s.thread == nil {
		return
	}
	s.thread.close()
	for _, f := range []*os.File{s.root, s.ns} {
		if f != nil {
			f.Close()
		}
	}
}

// mountThread is a goroutine bound to a thread with a mount namespace of its own.
type mountThread struct {
	work chan func()
	done chan struct{}
}

// newMountThread starts a thread in ns, or in a new namespace.
func newMountThread(ns *os.File) (*mountThread, error) {
	t := &mountThread{work: make(chan func()), done: make(chan struct{})}
	ready := make(chan error)
	go t.run(ns, ready)
	return t, <-ready
}

func (t *mountThread) run(ns *os.File, ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The main thread is what /proc/self shows of the process: it stays in the host's namespace. While it is
		// locked here, the next goroutine gets another.
		locked := make(chan error)
		go t.run(ns, locked)
		err := <-locked
		runtime.UnlockOSThread()
		ready <- err
		return
	}
	// Never unlocked: the runtime ends the thread with the goroutine, and starts no thread from it.
	defer close(t.done)
	var err error
	if ns == nil {
		err = unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
	} else if err = unix.Unshare(unix.CLONE_FS); err == nil {
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)
	}
	ready <- err
	if err != nil {
		return
	}
	for f := range t.work {
		f()
	}
}

// do runs f on the thread.
func (t *mountThread) do(f func() error) error {
	result := make(chan error, 1)
	select {
	case t.work <- func() { result <- f() }:
		return <-result
	case <-t.done:
		return os.ErrClosed
	}
}

func (t *mountThread) close() {
	select {
	case <-t.done:
	default:
		close(t.work)
		<-t.done
	}
}
