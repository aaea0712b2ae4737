package build

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/sandbox"
)

// A link that leads out of the context is refused by name, with what to do.
func TestLinkOutOfContext(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "sub"), 0o755), os.Symlink("../../secret", filepath.Join(dir, "sub", "key")),
		os.Symlink("/etc", filepath.Join(dir, "etc")), os.WriteFile(filepath.Join(dir, "good"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	c := &Context{root: root}
	for source, says := range map[string]string{
		"sub/key":  "sub/key is a symbolic link to ../../secret, outside of the build's context",
		"sub/k*":   "sub/key is a symbolic link to ../../secret, outside of the build's context",
		"etc/host": "etc is a symbolic link to /etc, outside of the build's context",
	} {
		found, err := c.find(source)
		if err == nil {
			_, _, err = c.tree(found[0], ".")
		}
		if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", source, err)
		}
	}
}
