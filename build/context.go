package build

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// maxContextFiles bounds what one instruction copies.
const maxContextFiles = 1_000_000

// Context is the directory that COPY takes from. Nothing outside it is read, wherever its links lead.
type Context struct {
	root   *os.Root
	ignore ignore
}

// OpenContext opens a directory and reads its .dockerignore.
func OpenContext(dir string) (*Context, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("build context: %w: %w", sandbox.ErrInvalid, err)
	}
	c := &Context{root: root}
	text, err := readSmall(root, ".dockerignore")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		root.Close()
		return nil, fmt.Errorf("build context: %w: .dockerignore: %w", sandbox.ErrInvalid, err)
	}
	c.ignore = parseIgnore(string(text))
	return c, nil
}

// Close releases the directory.
func (c *Context) Close() error { return c.root.Close() }

// ReadFile reads a file of the context, the Dockerfile for example.
func (c *Context) ReadFile(name string) ([]byte, error) { return readSmall(c.root, name) }

func readSmall(root *os.Root, name string) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%w: %s has more than %d bytes", sandbox.ErrInvalid, name, maxFile)
	}
	return b, err
}

// item is one object to copy.
type item struct {
	from string // in the context
	to   string // in the archive
	info fs.FileInfo
	link string
}

// find returns the sources that a pattern names, sorted.
func (c *Context) find(source string) ([]string, error) {
	clean := strings.Trim(path.Clean("/"+source), "/")
	found := []string{"."}
	if clean == "" {
		return found, nil
	}
	for _, part := range strings.Split(clean, "/") {
		var next []string
		for _, dir := range found {
			at := path.Join(dir, part)
			if !strings.ContainsAny(part, `*?[\`) {
				if _, err := c.root.Stat(at); err == nil {
					next = append(next, at)
				} else if !errors.Is(err, fs.ErrNotExist) {
					return nil, c.refused(at, err)
				}
				continue
			}
			entries, err := fs.ReadDir(c.root.FS(), dir)
			if err != nil {
				continue // a file: nothing below it
			}
			for _, e := range entries {
				ok, err := path.Match(part, e.Name())
				if err != nil {
					return nil, fmt.Errorf("%w: pattern %.200q: %w", sandbox.ErrInvalid, source, err)
				}
				if ok {
					next = append(next, path.Join(dir, e.Name()))
				}
			}
		}
		found = next
	}
	found = slices.DeleteFunc(found, func(name string) bool { return c.ignore.excludes(name) && !c.ignore.mayReturn() })
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: %.200q: there is no such file in the build's context (or .dockerignore leaves it out)", sandbox.ErrInvalid, source)
	}
	slices.Sort(found)
	return found, nil
}

// refused says why a name of the context cannot be looked at. The library has no kind for links that lead out.
func (c *Context) refused(name string, err error) error {
	if to, lerr := c.root.Readlink(name); lerr == nil && strings.Contains(err.Error(), "path escapes from parent") {
		return fmt.Errorf("%w: %s is a symbolic link to %s, outside of the build's context: put a copy of the file there, or build in a directory that holds both",
			sandbox.ErrInvalid, name, to)
	}
	return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
}

// tree lists what is copied of one source: the source itself and all below it, in name order. to is what it is called; a
// directory's own entry is left out.
func (c *Context) tree(source, to string) ([]item, bool, error) {
	st, err := c.root.Stat(source)
	if err != nil {
		return nil, false, c.refused(source, err)
	}
	if !st.IsDir() {
		if !st.Mode().IsRegular() {
			return nil, false, fmt.Errorf("%w: %s is neither a file nor a directory", sandbox.ErrInvalid, source)
		}
		return []item{{from: source, to: to, info: st}}, false, nil
	}
	var out []item
	err = fs.WalkDir(c.root.FS(), source, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name == source {
			return nil
		}
		if c.ignore.excludes(name) {
			if d.IsDir() && !c.ignore.mayReturn() {
				return fs.SkipDir
			}
			return nil
		}
		i := item{from: name, to: path.Join(to, strings.TrimPrefix(strings.TrimPrefix(name, source), "/"))}
		if source == "." {
			i.to = path.Join(to, name)
		}
		if i.info, err = c.root.Lstat(name); err != nil {
			return err
		}
		switch {
		case i.info.Mode()&fs.ModeSymlink != 0:
			if i.link, err = c.root.Readlink(name); err != nil {
				return err
			}
		case i.info.Mode()&fs.ModeSocket != 0:
			return nil
		case !i.info.Mode().IsRegular() && !i.info.IsDir():
			return fmt.Errorf("%w: %s is a device or a fifo, which no context may hold", sandbox.ErrInvalid, name)
		}
		if out = append(out, i); len(out) > maxContextFiles {
			return fmt.Errorf("%w: more than %d files", sandbox.ErrExhausted, maxContextFiles)
		}
		return nil
	})
	return out, true, err
}

// ownership is what COPY gives its files.
type ownership struct {
	uid, gid int
	mode     *fs.FileMode // nil = the file's own
}

func (o ownership) header(i item) (*tar.Header, error) {
	h, err := tar.FileInfoHeader(i.info, i.link)
	if err != nil {
		return nil, err
	}
	h.Name, h.Format = i.to, tar.FormatPAX
	h.Uid, h.Gid, h.Uname, h.Gname = o.uid, o.gid, "", ""
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	h.ModTime = h.ModTime.Truncate(time.Second)
	if o.mode != nil && i.link == "" {
		h.Mode = int64(*o.mode)
	}
	return h, nil
}

// digest names the content of what is copied: names, modes, owners, links and bytes, but not times.
func (c *Context) digest(items []item, o ownership) (string, error) {
	h := sha256.New()
	for _, i := range items {
		hd, err := o.header(i)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %c %o %d:%d %q %d\n", hd.Name, hd.Typeflag, hd.Mode, hd.Uid, hd.Gid, hd.Linkname, hd.Size)
		if err := c.copy(h, i); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// copy writes a regular file's content.
func (c *Context) copy(w io.Writer, i item) error {
	if !i.info.Mode().IsRegular() {
		return nil
	}
	f, err := c.root.Open(i.from)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(w, io.LimitReader(f, i.info.Size()))
	if err == nil && n < i.info.Size() {
		err = fmt.Errorf("%s became shorter while it was read: %w", i.from, io.ErrUnexpectedEOF)
	}
	return err
}

// write makes the archive.
func (c *Context) write(w io.Writer, items []item, o ownership) error {
	t := tar.NewWriter(w)
	for _, i := range items {
		h, err := o.header(i)
		if err != nil {
			return err
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if err := c.copy(t, i); err != nil {
			return err
		}
	}
	return t.Close()
}
