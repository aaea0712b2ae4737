package cell

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// beneath is how paths of a call are opened: inside its own tmpfs, and no link is followed.
func beneath(flags uint64, mode uint64) *unix.OpenHow {
	return &unix.OpenHow{Flags: flags | unix.O_CLOEXEC | unix.O_NOFOLLOW, Mode: mode,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
}

// writeFiles puts a call's files into its working directory. The cell has run nothing yet.
func writeFiles(dir int, files []File, uid int) error {
	work, err := unix.Openat(dir, "work", unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return wrap("open working directory", err)
	}
	defer unix.Close(work)
	made := map[string]bool{}
	for n := range files {
		f := &files[n]
		for at := strings.IndexByte(f.Path, '/'); at > 0; {
			d := f.Path[:at]
			if !made[d] {
				made[d] = true
				if err := unix.Mkdirat(work, d, 0o755); err != nil && err != unix.EEXIST {
					return wrap("file "+f.Path, err)
				}
				_ = unix.Fchownat(work, d, uid, uid, unix.AT_SYMLINK_NOFOLLOW)
			}
			next := strings.IndexByte(f.Path[at+1:], '/')
			if next < 0 {
				break
			}
			at += 1 + next
		}
		fd, err := unix.Openat2(work, f.Path, beneath(unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644))
		if err == nil {
			err = writeAll(fd, f.Data)
			if err == nil {
				err = unix.Fchown(fd, uid, uid)
			}
			if err == nil && f.Mode != 0 && f.Mode != 0o644 {
				err = unix.Fchmod(fd, f.Mode&0o777)
			}
			unix.Close(fd)
		}
		if err == unix.ENOSPC {
			return &stepError{"file " + f.Path, errFiles}
		}
		if err != nil {
			return wrap("file "+f.Path, err)
		}
	}
	return nil
}

type textError string

func (e textError) Error() string { return string(e) }

const errFiles = textError("the call's files do not fit its limits: raise limits.files or limits.file_bytes")

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// memoryFile is a file with the given content, at its beginning.
func memoryFile(b []byte) (int, error) {
	fd, err := unix.MemfdCreate("stdin", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, wrap("make stdin", err)
	}
	err = writeAll(fd, b)
	if err == nil {
		_, err = unix.Seek(fd, 0, 0)
	}
	if err != nil {
		unix.Close(fd)
		return -1, wrap("make stdin", err)
	}
	return fd, nil
}

// resize changes the limits of a call's files.
func resize(dir int, l *Limits) error {
	fs, err := unix.Fspick(dir, "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
	if err != nil {
		return wrap("limit files", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "size", strconv.FormatInt(l.FileBytes, 10)); err != nil {
		return wrap("limit bytes of files", err)
	}
	if err := unix.FsconfigSetString(fs, "nr_inodes", strconv.FormatInt(l.Files+4, 10)); err != nil {
		return wrap("limit number of files", err)
	}
	return wrap("limit files", unix.FsconfigReconfigure(fs))
}

// full tells whether a call's files have reached their limit.
func full(dir int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(dir, &st) == nil && (st.Bfree == 0 || st.Ffree == 0)
}

// collect reads files of the working directory: regular ones, of at most max bytes each, and of at most all bytes
// together. What is not there, or does not fit, is left out: sparse files cost a program nothing, and must not make a
// message that the edge refuses.
func collect(dir int, names []string, max, all int64) []File {
	work, err := unix.Openat(dir, "work", unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(work)
	var out []File
	for _, name := range names {
		if f, ok := readFile(work, name, min(max, all)); ok {
			all -= int64(len(f.Data))
			out = append(out, f)
		}
	}
	return out
}

func readFile(work int, name string, max int64) (File, bool) {
	// Non-blocking: it may have become a FIFO.
	fd, err := unix.Openat2(work, name, beneath(unix.O_RDONLY|unix.O_NONBLOCK, 0))
	if err != nil {
		return File{}, false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > max {
		return File{}, false
	}
	b := make([]byte, st.Size)
	for done := 0; done < len(b); {
		n, err := unix.Read(fd, b[done:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return File{}, false
		}
		done += n
	}
	return File{Path: name, Mode: st.Mode & 0o777, Data: b}, true
}
