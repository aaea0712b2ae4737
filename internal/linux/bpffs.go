package linux

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MountBPF mounts a file system for pinned eBPF objects on a directory, which is made; where one is mounted, it stays.
func MountBPF(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if st.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount bpf on %s: %w", dir, err)
	}
	return nil
}

// UnmountBPF undoes MountBPF; nothing mounted is no error.
func UnmountBPF(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if st.Type == unix.BPF_FS_MAGIC {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// Words is the memory of an eBPF array that was made to be mapped: 64-bit words, read and written one at a time.
type Words struct {
	mem   []byte
	words []uint64
}

// MapWords maps an array of n words by its descriptor, which may be closed afterwards.
func MapWords(fd, n int) (*Words, error) {
	page := os.Getpagesize()
	mem, err := unix.Mmap(fd, 0, (n*8+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map memory of eBPF array: %w", err)
	}
	return &Words{mem, unsafe.Slice((*uint64)(unsafe.Pointer(&mem[0])), n)}, nil
}

// Load reads a word.
func (w *Words) Load(i int) uint64 { return atomic.LoadUint64(&w.words[i]) }

// Store writes a word.
func (w *Words) Store(i int, v uint64) { atomic.StoreUint64(&w.words[i], v) }

// AddHalf adds to the 32-bit half of a word: 0 the lower, 1 the upper.
func (w *Words) AddHalf(i, half int, delta int32) {
	p := unsafe.Pointer(&w.words[i])
	atomic.AddInt32((*int32)(unsafe.Add(p, half*4)), delta)
}

// Close unmaps the memory.
func (w *Words) Close() error { return unix.Munmap(w.mem) }

// Monotonic is the clock that eBPF programs see: nanoseconds.
func Monotonic() time.Duration {
	var ts unix.Timespec
	// It cannot fail: the clock exists everywhere.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}
