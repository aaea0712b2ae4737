package debkernel

import (
	"os"
	"path/filepath"
	"testing"
)

// TestKeepSource: however many sources a cache has, after a download it has that one.
func TestKeepSource(t *testing.T) {
	cache, from := t.TempDir(), t.TempDir()
	for _, path := range []string{filepath.Join(cache, "linux-source-6.11_6.11.1-1_all.deb"), filepath.Join(cache, "linux-source-6.12_6.12.1-1_all.deb"),
		filepath.Join(from, "linux-source-6.12_1%3a6.12.9-1_all.deb")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if s := foundSource(cache); s != nil {
		t.Errorf("of two sources it takes %+v", s)
	}
	if err := keepSource(cache, filepath.Join(from, "linux-source-6.12_1%3a6.12.9-1_all.deb")); err != nil {
		t.Fatal(err)
	}
	if s := foundSource(cache); s == nil || s.Version != "1:6.12.9-1" || s.Package != "linux-source-6.12" {
		t.Errorf("it has %+v", s)
	}
}
