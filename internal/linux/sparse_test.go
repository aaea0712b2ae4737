package linux

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestCopySparse: holes stay holes, at the beginning, between data, and at the end.
func TestCopySparse(t *testing.T) {
	const size = 8 << 20
	dir := t.TempDir()
	src, err := os.Create(filepath.Join(dir, "src"))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if err := src.Truncate(size); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{1 << 20, 5<<20 + 77} {
		if _, err := src.WriteAt(bytes.Repeat([]byte("data"), 3000), at); err != nil {
			t.Fatal(err)
		}
	}
	dst, err := os.Create(filepath.Join(dir, "dst"))
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	if err := CopySparse(t.Context(), dst, src); err != nil {
		t.Fatal(err)
	}
	want, err1 := os.ReadFile(src.Name())
	got, err2 := os.ReadFile(dst.Name())
	if err1 != nil || err2 != nil || !bytes.Equal(got, want) {
		t.Errorf("another content: %v, %v", err1, err2)
	}
	st, err := dst.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if blocks := st.Sys().(*syscall.Stat_t).Blocks * 512; blocks > 1<<20 {
		t.Errorf("%d bytes are taken", blocks)
	}
}
