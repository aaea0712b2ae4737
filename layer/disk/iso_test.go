package disk_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/layer/disk"
	"github.com/opendsec/dsec/sandbox"
)

// TestISO: other programs take an image for what it is. That a kernel finds the files is looked at in a full VM, for few
// nodes' kernels know the format.
func TestISO(t *testing.T) {
	files := []disk.File{{Name: "user-data", Content: []byte("#cloud-config\n")}, {Name: "meta-data", Content: bytes.Repeat([]byte("x: y\n"), 1000)}, {Name: "network-config"}}
	path := filepath.Join(t.TempDir(), "seed")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(disk.WriteISO(f, "cidata", files), f.Close()); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("blkid", "-p", path).CombinedOutput()
	if err != nil || !strings.Contains(string(out), `LABEL="cidata"`) || !strings.Contains(string(out), `TYPE="iso9660"`) {
		t.Errorf("blkid says %s, %v", out, err)
	}
}

func TestISORefused(t *testing.T) {
	for _, files := range [][]disk.File{{{Name: ""}}, {{Name: "a/b"}}, {{Name: strings.Repeat("n", 31)}}, make([]disk.File, 17)} {
		if err := disk.WriteISO(&bytes.Buffer{}, "l", files); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%d files: %v", len(files), err)
		}
	}
}
