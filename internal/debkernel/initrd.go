package debkernel

import (
	"bytes"
	"fmt"
)

// Archive writes the "newc" form of cpio, which the kernel unpacks into its initial file system.
type Archive struct {
	W   *bytes.Buffer
	ino int
}

// Add appends a file; mode is as in st_mode.
func (a *Archive) Add(name string, mode uint32, data []byte) {
	a.ino++
	// ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
	fmt.Fprintf(a.W, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	a.pad()
	a.W.Write(data)
	a.pad()
}

// End appends what ends an archive.
func (a *Archive) End() { a.Add("TRAILER!!!", 0, nil) }

func (a *Archive) pad() {
	for a.W.Len()%4 != 0 {
		a.W.WriteByte(0)
	}
}
