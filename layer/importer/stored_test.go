package importer_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/importer"
	"github.com/opendsec/dsec/layer/layertest"
)

// What is asked about published content: what a stack hides, in what two differ, whether it is whole, and one layer of many.
func TestStored(t *testing.T) {
	s := start(t, importer.Options{})
	rpc := dsecv1connect.NewStoreServiceClient(s.client, "http://blobd")
	ctx := t.Context()
	put := func(name string, entries ...layertest.Entry) string {
		_, out := s.put("kind=base&name="+name, bytes.NewReader(layertest.Tar(t, entries...)))
		d := out[len(out)-1].GetLayer().GetDigest()
		if d == "" {
			t.Fatalf("%v", out)
		}
		return d
	}
	one := put("one", layertest.Entry{Name: "a", Body: "1"}, layertest.Entry{Name: "bin/sh", Body: "sh"}, layertest.Entry{Name: "only", Body: "x"})
	two := put("two", layertest.Entry{Name: "a", Body: "2"}, layertest.Entry{Name: "bin", Body: "a file"}, layertest.Entry{Name: "new\n", Body: "x"})

	list, err := rpc.ListStored(ctx, &dsecv1.ListStoredRequest{})
	if err != nil || len(list.Layers) != 2 || list.Layers[0].MetaBytes == 0 || list.Layers[0].Files == 0 {
		t.Errorf("%v, %v", list, err)
	}
	d, err := rpc.DescribeStack(ctx, &dsecv1.DescribeStackRequest{Digests: []string{one, two}, Paths: 1})
	if err != nil || len(d.Hidden) != 1 || d.Hidden[0].Names != 3 || len(d.Hidden[0].Paths) != 1 || d.Hidden[0].Paths[0].Path != "/a" || len(d.Layers) != 2 {
		t.Errorf("%v, %v", d, err)
	}
	diff := func(from, to []string, contents bool) string {
		stream, err := rpc.DiffStacks(ctx, &dsecv1.DiffStacksRequest{From: from, To: to, Contents: contents})
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		var got []string
		for stream.Receive() {
			for _, c := range stream.Msg().Changes {
				got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s", c.Kind, c.Path, strings.Join(c.What, ","))))
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		return strings.Join(got, "; ")
	}
	if got, want := diff([]string{one}, []string{one, two}, false), `changed /bin type,mode; removed /bin/sh; added "/new\n"`; got != want {
		t.Errorf("diff: %s", got)
	}
	if got := diff([]string{one}, []string{one, two}, true); !strings.HasPrefix(got, "changed /a content; ") {
		t.Errorf("diff of contents: %s", got)
	}

	stream, err := rpc.CollapseStack(ctx, &dsecv1.CollapseStackRequest{Digests: []string{one, two}, Name: "c"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var made *dsecv1.Layer
	for stream.Receive() {
		made = stream.Msg().GetLayer()
	}
	if stream.Err() != nil || made.GetDigest() == "" || made.GetName() != "" {
		t.Fatalf("%v, %v", made, stream.Err())
	}
	if got := diff([]string{one, two}, []string{made.Digest}, true); got != "" {
		t.Errorf("collapsed, it differs: %s", got)
	}
	if os.Geteuid() == 0 {
		if b, err := os.ReadFile(filepath.Join(s.mount(made), "only")); err != nil || string(b) != "x" {
			t.Errorf("%q, %v", b, err)
		}
	}

	if v, err := rpc.VerifyStored(ctx, &dsecv1.VerifyStoredRequest{Digest: one}); err != nil || v.Bytes == 0 {
		t.Errorf("%v, %v", v, err)
	}
	data := filepath.Join(s.dir, "layers", layer.Digest(one).Hex(), "data")
	b, err := os.ReadFile(data)
	if err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if err := os.WriteFile(data, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if v, err := rpc.VerifyStored(ctx, &dsecv1.VerifyStoredRequest{Digest: one}); err != nil || !strings.Contains(v.GetDamage(), "data: chunk 0 of 1: its content does not have its digest") {
		t.Errorf("a flipped bit: %v, %v", v, err)
	}
	// The same content once more takes its place.
	again := func(what string, reused, repaired bool) {
		t.Helper()
		_, out := s.put("kind=workspace&name=one", bytes.NewReader(layertest.Tar(t, layertest.Entry{Name: "a", Body: "1"}, layertest.Entry{Name: "bin/sh", Body: "sh"}, layertest.Entry{Name: "only", Body: "x"})))
		if r := out[len(out)-1]; r.GetLayer().GetDigest() != one || r.GetReused() != reused || r.GetRepaired() != repaired {
			t.Errorf("%s: %v", what, r)
		}
		if v, err := rpc.VerifyStored(ctx, &dsecv1.VerifyStoredRequest{Digest: one}); err != nil || v.GetDamage() != "" {
			t.Errorf("%s: %v, %v", what, v, err)
		}
	}
	again("damaged", false, true)
	again("whole", true, false)
	missing := "b3:" + strings.Repeat("0", 64)
	for what, err := range map[string]error{
		"no layers": second(rpc.DescribeStack(ctx, &dsecv1.DescribeStackRequest{})),
		"not one":   second(rpc.VerifyStored(ctx, &dsecv1.VerifyStoredRequest{Digest: "x"})),
		"too many":  second(rpc.DescribeStack(ctx, &dsecv1.DescribeStackRequest{Digests: slices.Repeat([]string{one}, 300)})),
	} {
		if connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := rpc.DescribeStack(ctx, &dsecv1.DescribeStackRequest{Digests: []string{missing}}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a layer that is not there: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }
