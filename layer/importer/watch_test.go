package importer_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/layer/importer"
	"github.com/opendsec/dsec/layer/layertest"
)

// TestStoreHangs: a store whose mount stands still is unavailable in the time that is given, whatever is asked for, also in the
// middle of an import; when it answers again all goes on, and nothing is left in staging.
func TestStoreHangs(t *testing.T) {
	if !testkit.HaveFUSE() {
		t.Skip("no FUSE here, or not root")
	}
	from, at := t.TempDir(), t.TempDir()
	mount, err := testkit.MountHanging(t.Context(), from, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mount.Stop(); err != nil {
			t.Error(err)
		}
	})
	s := startIn(t, importer.Options{StoreTimeout: time.Second}, at)
	t.Cleanup(func() { _ = mount.Resume() }) // before the store is looked at
	rpc := dsecv1connect.NewStoreServiceClient(s.client, "http://blobd")
	small := layertest.Tar(t, layertest.Entry{Name: "a", Body: "1"})
	_, out := s.put("kind=workspace&name=one", bytes.NewReader(small))
	one := out[len(out)-1].GetLayer().GetDigest()
	if one == "" {
		t.Fatalf("%v", out)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// An import that is in the middle of its body when the mount stops.
	body := &pausing{r: bytes.NewReader(layertest.Tar(t, layertest.Entry{Name: "big", Body: strings.Repeat("0123456789abcdef", 1<<18)})), at: 1 << 20,
		reached: make(chan struct{}), goOn: make(chan struct{})}
	said := make(chan string, 1)
	go func() {
		_, out := s.put("kind=workspace&name=two", body)
		said <- out[len(out)-1].GetError().GetMessage()
	}()
	<-body.reached
	if err := mount.Pause(); err != nil {
		t.Fatal(err)
	}
	close(body.goOn)
	const words = "the store did not answer within 1s"
	select {
	case got := <-said:
		if !strings.Contains(got, words) {
			t.Errorf("in the middle: %q", got)
		}
	case <-ctx.Done():
		t.Fatal("the import in the middle did not end")
	}
	for name, ask := range map[string]func() error{
		"list":   func() error { return second(rpc.ListStored(ctx, &dsecv1.ListStoredRequest{})) },
		"verify": func() error { return second(rpc.VerifyStored(ctx, &dsecv1.VerifyStoredRequest{Digest: one})) },
		"describe": func() error {
			return second(rpc.DescribeStack(ctx, &dsecv1.DescribeStackRequest{Digests: []string{one}}))
		},
		"diff": func() error {
			stream, err := rpc.DiffStacks(ctx, &dsecv1.DiffStacksRequest{From: []string{one}, To: []string{one}})
			if err != nil {
				return err
			}
			defer stream.Close()
			for stream.Receive() {
			}
			return stream.Err()
		},
		"collapse": func() error {
			stream, err := rpc.CollapseStack(ctx, &dsecv1.CollapseStackRequest{Digests: []string{one, one}, Name: "c"})
			if err != nil {
				return err
			}
			defer stream.Close()
			for stream.Receive() {
			}
			return stream.Err()
		},
	} {
		if err := ask(); connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if code, _ := s.put("kind=workspace&name=three", bytes.NewReader(small)); code != http.StatusServiceUnavailable {
		t.Errorf("an import: HTTP %d", code)
	}
	if err := mount.Resume(); err != nil {
		t.Fatal(err)
	}
	// What was left to itself ends and cleans up.
	for {
		left, err := os.ReadDir(filepath.Join(from, "staging"))
		if err == nil && len(left) == 0 {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("staging holds %v, %v", left, err)
		}
		<-time.After(10 * time.Millisecond)
	}
	if _, out := s.put("kind=workspace&name=three", bytes.NewReader(small)); !out[len(out)-1].GetReused() {
		t.Errorf("afterwards: %v", out)
	}
}

// pausing is a body that stops at a point until it is told to go on.
type pausing struct {
	r             *bytes.Reader
	at            int64
	reached, goOn chan struct{}
	passed        bool
}

func (p *pausing) Read(b []byte) (int, error) {
	if !p.passed && p.r.Size()-int64(p.r.Len()) >= p.at {
		p.passed = true
		close(p.reached)
		<-p.goOn
	}
	return p.r.Read(b[:min(len(b), 64<<10)])
}
