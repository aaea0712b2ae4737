package linux

import (
	"errors"
	"io"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// HugePages returns n bytes of memory that are not the collector's: huge pages, where the kernel has some. n is a
// multiple of their size, 2 MiB.
func HugePages(n int) ([]byte, error) {
	const huge = 2 << 20
	all, err := unix.Mmap(-1, 0, n+huge, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, &os.SyscallError{Syscall: "mmap", Err: err}
	}
	skip := -int(uintptr(unsafe.Pointer(&all[0]))) & (huge - 1)
	_ = unix.Madvise(all[skip:skip+n], unix.MADV_HUGEPAGE)
	pages.mu.Lock()
	defer pages.mu.Unlock()
	b := all[skip : skip+n : skip+n]
	pages.all[&b[0]] = all
	return b, nil
}

// pages are those that were given out, by their first byte.
var pages = struct {
	mu  sync.Mutex
	all map[*byte][]byte
}{all: map[*byte][]byte{}}

// FreePages gives back what HugePages returned.
func FreePages(b []byte) error {
	pages.mu.Lock()
	all := pages.all[&b[0]]
	delete(pages.all, &b[0])
	pages.mu.Unlock()
	return unix.Munmap(all)
}

// ReadWhole fills b with the beginning of a file. What the kernel has of it in memory comes from there; else the disk
// writes into b itself where it can, which wants b to begin at a page and to have whole blocks, and the kernel keeps
// nothing. Error: io.ErrUnexpectedEOF where the file is shorter.
func ReadWhole(path string, b []byte) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	direct := false
	var st unix.Cachestat_t
	if err := unix.Cachestat(uint(fd), &unix.CachestatRange{Len: uint64(len(b))}, &st, 0); err == nil && st.Cache == 0 {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_DIRECT)
			direct = err == nil
		}
	}
	for n := 0; n < len(b); {
		k, err := unix.Pread(fd, b[n:], int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EINVAL) && direct: // not here, or not from here on
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, 0); err != nil {
				return &os.PathError{Op: "fcntl", Path: path, Err: err}
			}
			direct = false
		case err != nil:
			return &os.PathError{Op: "read", Path: path, Err: err}
		case k == 0:
			return &os.PathError{Op: "read", Path: path, Err: io.ErrUnexpectedEOF}
		default:
			n += k
		}
	}
	return nil
}
