package posix_test

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/layer/store/posix"
)

const childEnv = "DSEC_TEST_PUBLISH_TO"

// TestPublishForever is the process that TestKilledPublisher kills.
func TestPublishForever(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		t.Skip("only as a child")
	}
	s, err := posix.Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for n := uint64(0); ; n++ {
		sample := layertest.NewSample(t, n, 700_000)
		d, err := s.Put(t.Context(), sample.Manifest, bytes.NewReader(sample.Meta), bytes.NewReader(sample.Data))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("published", d)
	}
}

// A publisher that is killed at any moment leaves whole layers and staging, which the next to open removes.
func TestKilledPublisher(t *testing.T) {
	dir := t.TempDir()
	for round := range 5 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPublishForever$")
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for range 3 + 2*round {
			if !lines.Scan() {
				t.Error("the publisher ended")
				break
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		s := open(t, dir)
		all, err := s.List(t.Context())
		if err != nil || len(all) == 0 {
			t.Fatalf("List = %v, %v", all, err)
		}
		for _, d := range all {
			if err := s.Verify(t.Context(), d); err != nil {
				t.Error(err)
			}
		}
		if left, err := os.ReadDir(filepath.Join(dir, "staging")); err != nil || len(left) != 0 {
			t.Errorf("staging holds %v, %v", left, err)
		}
	}
}
