package lazy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/build"
)

// with makes a sandbox of an environment.
func (n *node) with(env *dsecv1.Environment) string {
	n.t.Helper()
	boxes, err := n.Client.Create(n.t.Context(), &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{Environment: env,
		Limits: &dsecv1.Limits{MemoryBytes: 256 << 20, Pids: 256, DiskBytes: 64 << 20}}})
	if err != nil {
		n.t.Fatal(err)
	}
	return boxes[0].GetId()
}

// credentials lets the command line find the node.
func (n *node) credentials() {
	n.t.Helper()
	var c struct{ URL, Key string }
	b, err := os.ReadFile(filepath.Join(n.state, "client.json"))
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Setenv("DSEC_URL", c.URL)
	n.t.Setenv("DSEC_API_KEY", c.Key)
}

// objects are the digests of the layers in the bucket.
func (n *node) objects() []string {
	n.t.Helper()
	all, err := filepath.Glob(filepath.Join(n.s3.Dir, bucket, "team", "layers", "*", "manifest.json"))
	if err != nil {
		n.t.Fatal(err)
	}
	var out []string
	for _, p := range all {
		out = append(out, "b3:"+filepath.Base(filepath.Dir(p)))
	}
	slices.Sort(out)
	return out
}

// TestPublishesToS3: what a node builds, packs and collapses goes to the bucket, and is there for a node that has nothing of it;
// forks read from it too; what nothing names is found.
func TestPublishesToS3(t *testing.T) {
	n := start(t)
	ctx := t.Context()
	n.credentials()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\necho tool $1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	made := func() *build.Result {
		t.Helper()
		f, err := build.Parse([]byte("FROM debian\nCOPY tool /bin/\nRUN tool x > /made && rm -r /usr/share/doc\nRUN echo two >> /made\n"))
		if err != nil {
			t.Fatal(err)
		}
		c, err := build.OpenContext(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var out bytes.Buffer
		r, err := build.Build(ctx, f, build.Options{Client: n.Client, Name: "app", Context: c, StepTimeout: 2 * time.Minute,
			Limits: &dsecv1.Limits{MemoryBytes: 256 << 20, DiskBytes: 64 << 20}, Output: func(p []byte) error { out.Write(p); return nil }})
		if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		return r
	}
	if first, again := made(), made(); again.Cached != 3 || !again.Reused || first.Reused {
		t.Errorf("built %+v, then %+v", first, again)
	}
	id := n.with(&dsecv1.Environment{Base: "app"})
	n.must(id, "echo three >> /made && rm /bin/tool && ln /made /same")
	kids, err := n.Client.Fork(ctx, &dsecv1.ForkSandboxRequest{SandboxId: id, Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	const look = "cat /same; ls /bin/tool /usr/share/doc 2>/dev/null; sha256sum /usr/bin/perl"
	want := n.must(id, look)
	if !strings.HasPrefix(want, "tool x\ntwo\nthree\n") {
		t.Fatalf("%q", want)
	}
	for _, k := range kids {
		if got := n.must(k.GetId(), look); got != want {
			t.Errorf("a fork has %q, want %q", got, want)
		}
	}
	pack, err := n.Client.PackDiff(ctx, &dsecv1.PackDiffRequest{SandboxId: kids[0].GetId(), Name: "solved"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := n.Run(ctx, "layer", "collapse", "--base", "app")
	if err != nil || !strings.Contains(text, "app@v2 1 layers, were 4") {
		t.Fatalf("%v: %s", err, text)
	}
	if text, err := n.Run(ctx, "layer", "verify"); err != nil || strings.Count(text, " ok ") != 4 {
		t.Errorf("%v: %s", err, text)
	}
	before := n.objects()
	// Nothing of it is on the node any more.
	if left, err := n.Stop(); err != nil || len(left) > 0 {
		t.Fatalf("stop: %v, left %q", err, left)
	}
	if err := os.RemoveAll(filepath.Join(n.state, "lazy")); err != nil {
		t.Fatal(err)
	}
	n.up()
	if got := n.must(n.with(pack.GetEnvironment()), look); got != want {
		t.Errorf("restored: %q, want %q", got, want)
	}
	flat := n.with(&dsecv1.Environment{Base: "app@v2", Toolkits: []string{"solved"}})
	if got := n.must(flat, look); got != want {
		t.Errorf("over the collapsed base: %q, want %q", got, want)
	}
	// The version that was collapsed goes; its layers stay as steps of the build, and are found when those are forgotten.
	if text, err := n.Run(ctx, "image", "rm", "app@v1"); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	text, err = n.Run(ctx, "layer", "gc", "--steps-older", "0")
	if err != nil || !strings.Contains(text, "kept b3:") || !strings.Contains(text, " 3 steps of builds") {
		t.Errorf("%v: %s", err, text)
	}
	// All of it was made a moment ago.
	if !slices.Equal(n.objects(), before) {
		t.Errorf("the bucket has %v, had %v", n.objects(), before)
	}
	if got := n.must(flat, look); got != want {
		t.Errorf("afterwards: %q, want %q", got, want)
	}
	// An object that is cut is found by verify, and mended by publishing again.
	data := filepath.Join(n.s3.Dir, bucket, "team", "layers", strings.TrimPrefix(pack.GetLayer().GetDigest(), "b3:"), "meta.erofs.zst")
	if err := os.Truncate(data, 100); err != nil {
		t.Fatal(err)
	}
	if text, err := n.Run(ctx, "layer", "verify", "--toolkit", "solved"); err == nil {
		t.Errorf("a cut object passes: %s", text)
	}
	if err := errors.Join(ctx.Err(), second(n.Client.PackDiff(ctx, &dsecv1.PackDiffRequest{SandboxId: flat, Name: "more"}, nil))); err != nil {
		t.Error(fmt.Errorf("a pack beside a damaged layer: %w", err))
	}
}

func second[T any](_ T, err error) error { return err }
