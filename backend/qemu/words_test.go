package qemu

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestSaid: a program that talks without end neither fills the node's disk nor waits for a reader; what it said can be read
// after its end.
func TestSaid(t *testing.T) {
	w, err := OpenWords(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, c := range []struct{ script, want string }{
		{"echo hello; sleep 0.2; echo begin; dd if=/dev/zero bs=4096 count=1000 2>/dev/null | tr '\\0' x; true", "x"},
		{"echo the last words; kill -9 $$", "the last words"},
		{"echo the last; echo 'qemu: warning: hub 0 is not connected to host network'", "the last"}, // as each says
	} {
		cmd := exec.Command("sh", "-c", c.script)
		pen, err := w.Pen()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = pen, pen
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := Unwait(pen); err != nil {
			t.Fatal(err)
		}
		pen.Close()
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			t.Fatal("it waits for a reader")
		}
		if got := w.Read(); !strings.HasSuffix(got, c.want) || len(got) > maxWords {
			t.Errorf("%q: %d bytes, %.100q", c.script, len(got), got)
		}
		if st, err := os.Stat(w.f.Name()); err != nil || st.Size() > 0 {
			t.Errorf("on disk: %v, %v", st, err)
		}
	}
}
