package erofs_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/opendsec/dsec/layer/erofs"
)

// Whatever an image holds, reading it ends in an error or in a tree that can be written.
func FuzzRead(f *testing.F) {
	for seed := range uint64(3) {
		b := newBuilder(seed)
		var image bytes.Buffer
		if _, err := erofs.Write(&image, b.random(20), erofs.Options{DataSize: int64(len(b.blob)), Devices: true}); err != nil {
			f.Fatal(err)
		}
		f.Add(image.Bytes(), int64(len(b.blob)))
	}
	f.Fuzz(func(t *testing.T, image []byte, dataSize int64) {
		root, err := erofs.Read(image, dataSize)
		if err != nil {
			return
		}
		if names := count(root); names > len(image) {
			t.Errorf("%d names in %d bytes", names, len(image))
		}
	})
}

func count(dir *erofs.Inode) int {
	n := 1
	for _, e := range dir.Entries {
		if e.Inode.IsDir() {
			n += count(e.Inode)
		} else {
			n++
		}
	}
	return n
}

// Any byte of an image may be wrong: no such image may bring the reader down.
func TestReadDamaged(t *testing.T) {
	b := newBuilder(7)
	meta, _ := b.write(t, b.random(60))
	good, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for at := 1024; at < len(good); at += 1 + len(good)/1500 {
		bad := bytes.Clone(good)
		bad[at] ^= 0xff
		if _, err := erofs.Read(bad, int64(len(b.blob))); err != nil {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no damage at all was noticed")
	}
	for _, size := range []int{0, 100, 1100, 4096, len(good) / 2} {
		if _, err := erofs.Read(good[:size], int64(len(b.blob))); err == nil {
			t.Errorf("an image cut off after %d bytes was read", size)
		}
	}
	if len(b.blob) > 0 {
		if _, err := erofs.Read(good, 0); err == nil {
			t.Error("extents outside the blob were taken")
		}
	}
}
