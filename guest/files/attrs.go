package files

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

const userAttrs = "user."

// attributes reads what the user may read of the attributes of a file or directory: a name in an open directory, or a path.
// What is beyond the bounds is left out, as is all of what cannot be opened or has none.
func attributes(open func(flags int) (int, error), mode uint32) []wire.Attr {
	if k := mode & unix.S_IFMT; k != unix.S_IFREG && k != unix.S_IFDIR {
		return nil
	}
	fd, err := open(unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n, err := unix.Flistxattr(fd, nil)
	if err != nil || n == 0 {
		return nil
	}
	names := make([]byte, n)
	if n, err = unix.Flistxattr(fd, names); err != nil {
		return nil // it changes meanwhile
	}
	var out []wire.Attr
	value := make([]byte, wire.MaxAttrsBytes)
	left := wire.MaxAttrsBytes
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		short, ok := strings.CutPrefix(name, userAttrs)
		if !ok || short == "" || len(short) > wire.MaxName || len(out) >= wire.MaxAttrs {
			continue
		}
		n, err := unix.Fgetxattr(fd, name, value)
		if err != nil || len(short)+n > left {
			continue
		}
		left -= len(short) + n
		out = append(out, wire.Attr{Name: short, Value: string(value[:n])})
	}
	return out
}

// Mark gives the file that is being written attributes.
func (t *Temp) Mark(l []wire.Attr) error {
	for _, a := range l {
		if err := unix.Fsetxattr(t.fd, userAttrs+a.Name, []byte(a.Value), 0); err != nil {
			return fail("set the attribute "+a.Name+" of", t.path, err)
		}
	}
	return nil
}
