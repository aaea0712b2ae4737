package files

import (
	"io"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// chunk is what is read and written at once, in bytes.
const chunk = 64 << 10

// buffer is memory outside the Go heap for the time of one transfer.
func buffer() ([]byte, error) {
	return unix.Mmap(-1, 0, chunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
}

// File is a regular file open for reading.
type File struct {
	Info wire.FileInfo
	fd   int
}

// OpenRead opens a regular file.
func OpenRead(path string) (*File, error) {
	// Look first: opening a FIFO or a device may do something.
	fd, err := open(path, unix.O_PATH, 0)
	if err != nil {
		return nil, fail("read", path, err)
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	proc := procfs(fd)
	unix.Close(fd)
	if err == nil {
		err = readable(&st, proc)
	}
	if err != nil {
		return nil, fail("read", path, err)
	}
	if fd, err = open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
		return nil, fail("read", path, err)
	}
	if err = unix.Fstat(fd, &st); err == nil {
		err = readable(&st, procfs(fd))
	}
	if err != nil {
		unix.Close(fd)
		return nil, fail("read", path, err)
	}
	return &File{Info: info(path, &st), fd: fd}, nil
}

func readable(st *unix.Stat_t, proc bool) error {
	switch {
	case kind(st) == unix.S_IFDIR:
		return unix.EISDIR
	case kind(st) != unix.S_IFREG:
		return &wire.Error{Code: wire.CodeInvalid, Message: "not a regular file"}
	case proc:
		return errProc
	}
	return nil
}

// Copy writes the file's bytes from an offset on, at most length (negative: all).
func (f *File) Copy(w io.Writer, offset, length int64) error {
	buf, err := buffer()
	if err != nil {
		return fail("read", f.Info.Path, err)
	}
	defer unix.Munmap(buf)
	for length != 0 {
		b := buf
		if length > 0 && length < int64(len(b)) {
			b = b[:length]
		}
		n, err := unix.Pread(f.fd, b, offset)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fail("read", f.Info.Path, err)
		}
		if n <= 0 {
			return nil
		}
		if _, err := w.Write(b[:n]); err != nil {
			return err
		}
		offset += int64(n)
		if length > 0 {
			length -= int64(n)
		}
	}
	return nil
}

// Close closes the file.
func (f *File) Close() { unix.Close(f.fd) }
