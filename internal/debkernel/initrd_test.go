package debkernel

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestArchive unpacks what the kernel will with cpio, where there is one.
func TestArchive(t *testing.T) {
	var b bytes.Buffer
	a := &Archive{W: &b}
	a.Add("dev", 0o040755, nil)
	a.Add("init", 0o100755, []byte("odd"))
	a.End()
	if b.Len()%4 != 0 || !bytes.HasPrefix(b.Bytes(), []byte("070701")) {
		t.Fatalf("%q", b.Bytes())
	}
	if _, err := exec.LookPath("cpio"); err != nil {
		t.Skip("no cpio")
	}
	dir := t.TempDir()
	cmd := exec.Command("cpio", "-i", "--quiet")
	cmd.Dir, cmd.Stdin = dir, &b
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v: %s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "init")); err != nil || string(got) != "odd" {
		t.Fatalf("init: %q, %v", got, err)
	}
}
