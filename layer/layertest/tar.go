package layertest

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"
	"time"
)

// Entry is one entry of a tar made by Tar. The type defaults to a directory when the name ends in a slash, to a symbolic link
// when Link is set, else to a file.
type Entry struct {
	Name, Link, Body string
	Type             byte
	Mode             int64 // 0 = 0755 for directories, else 0644
	UID              int
	Xattrs           map[string]string
	Major, Minor     int64
}

// Tar makes a tar with these entries, in order.
func Tar(t testing.TB, entries ...Entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{
			Name: e.Name, Linkname: e.Link, Typeflag: e.Type, Mode: e.Mode, Uid: e.UID, Gid: e.UID,
			Size: int64(len(e.Body)), Devmajor: e.Major, Devminor: e.Minor, ModTime: time.Unix(1_600_000_000, 0),
			Format: tar.FormatPAX,
		}
		switch {
		case h.Typeflag != 0:
		case strings.HasSuffix(e.Name, "/"):
			h.Typeflag = tar.TypeDir
		case e.Link != "":
			h.Typeflag = tar.TypeSymlink
		default:
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		for k, v := range e.Xattrs {
			if h.PAXRecords == nil {
				h.PAXRecords = map[string]string{}
			}
			h.PAXRecords["SCHILY.xattr."+k] = v
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.Body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
