package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestListenUnix: a role's socket is root's alone, and making one changes nothing for files that are made meanwhile.
func TestListenUnix(t *testing.T) {
	dir, err := os.MkdirTemp("", "ds-") // short: it holds a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	sock := filepath.Join(dir, "s")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2000 {
			ln, err := listenUnix(sock)
			if err != nil {
				t.Error(err)
				return
			}
			if st, err := os.Stat(sock); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("mode %v, %v", st.Mode(), err)
			}
			ln.Close()
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		d := filepath.Join(dir, "d")
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(d); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("a directory made meanwhile has mode %v, %v", st.Mode(), err)
			break
		}
		if err := os.Remove(d); err != nil {
			t.Fatal(err)
		}
	}
	<-done
}
