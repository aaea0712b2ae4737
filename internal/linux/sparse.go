package linux

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copyStep is how much is copied before it is looked whether that is still wanted, bytes.
const copyStep = 64 << 20

// CopySparse makes dst, which is empty, what src is: by sharing its blocks where the file system can, else by copying what
// is not a hole. Both are on file systems of this machine; nothing else writes them.
func CopySparse(ctx context.Context, dst, src *os.File) error {
	if unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) == nil {
		return nil
	}
	st, err := src.Stat()
	if err != nil {
		return err
	}
	if err := dst.Truncate(st.Size()); err != nil {
		return err
	}
	for at := int64(0); at < st.Size(); {
		from, err := src.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // a hole up to the end
		}
		if err != nil {
			return err
		}
		to, err := src.Seek(from, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if err := copyRange(ctx, dst, src, from, to); err != nil {
			return err
		}
		at = to
	}
	return nil
}

func copyRange(ctx context.Context, dst, src *os.File, from, to int64) error {
	for in, out := from, from; in < to; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.CopyFileRange(int(src.Fd()), &in, int(dst.Fd()), &out, int(min(to-in, copyStep)), 0)
		if err == unix.EXDEV || err == unix.EOPNOTSUPP || err == unix.EINVAL {
			_, err := io.Copy(io.NewOffsetWriter(dst, in), io.NewSectionReader(src, in, to-in))
			return err
		}
		if err != nil {
			return os.NewSyscallError("copy_file_range", err)
		}
		if n == 0 {
			return io.ErrUnexpectedEOF // it became shorter
		}
	}
	return nil
}
