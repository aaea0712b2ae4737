package linux

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// NewErofs makes a detached, read-only mount of an EROFS image: meta is the image file and data its blob, empty for an
// image without one. Both must lie on a file system with a block device, or on a FUSE one.
//
// With readahead, bytes, the blob is read past the kernel's cache of that file, so that its pages are kept and copied
// once and not twice, and so far ahead of who goes straight on: for blobs whose server has a cache of its own. Kernels
// that cannot (before 6.14) read as they do without.
func NewErofs(meta, data string, attr MountAttr, readahead int) (*os.File, error) {
	opts := []Option{{Key: "source", Value: meta}}
	if data != "" {
		// Left out, the kernel would mount the metadata all the same.
		opts = append(opts, Option{Key: "device", Value: data})
	}
	attr |= ReadOnly | NoDev
	if readahead == 0 || data == "" || !ErofsReadsDirectly() {
		return NewMount("erofs", attr, opts...)
	}
	before := erofsBDIs()
	m, err := NewMount("erofs", attr, append(opts, Option{Key: "directio", Flag: true})...)
	if err != nil {
		return nil, err
	}
	// Nothing says which of them is this mount's: those that are new are told. Not fatal: it costs speed alone.
	for dir := range erofsBDIs() {
		if !before[dir] {
			_ = WritePlain(filepath.Join(dir, "read_ahead_kb"), strconv.Itoa(readahead>>10))
		}
	}
	return m, nil
}

// ErofsReadsDirectly tells whether the kernel can read a blob past the cache of its file.
var ErofsReadsDirectly = sync.OnceValue(func() bool {
	fs, err := unix.Fsopen("erofs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fs)
	return unix.FsconfigSetFlag(fs, "directio") == nil
})

// erofsBDIs are the folders of what the kernel sets for each EROFS mount.
func erofsBDIs() map[string]bool {
	dirs, _ := filepath.Glob("/sys/class/bdi/erofs-*")
	out := make(map[string]bool, len(dirs))
	for _, d := range dirs {
		out[d] = true
	}
	return out
}
