package layer_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

func manifest() *layer.Manifest {
	hash := strings.Repeat("0f", 32)
	return &layer.Manifest{Version: 1, Files: 3,
		Meta:   layer.Blob{Size: 8192, ChunkSize: layer.ChunkSize, Chunks: []string{hash}},
		Data:   layer.Blob{Size: 0, ChunkSize: layer.ChunkSize},
		Config: layer.Config{Env: []string{"A=<&>\u2028"}, User: "u", Cmd: []string{}},
	}
}

// The encoding is the format: it must not change.
func TestEncodingIsCanonical(t *testing.T) {
	b, d, err := manifest().Encode()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"version":1,"meta":{"size":8192,"chunkSize":262144,"chunks":["` + strings.Repeat("0f", 32) +
		`"]},"data":{"size":0,"chunkSize":262144,"chunks":[]},"files":3,"config":{"env":["A=<&>\u2028"],"user":"u"}}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	m, err := layer.DecodeManifest(b, d)
	if err != nil {
		t.Fatal(err)
	}
	if b2, d2, err := m.Encode(); err != nil || !bytes.Equal(b, b2) || d != d2 {
		t.Errorf("decoded and encoded: %s, %s, %v", b2, d2, err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	encode := func(edit func(m *layer.Manifest)) []byte {
		m := manifest()
		edit(m)
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	cases := map[string][]byte{
		"not JSON":       []byte("{"),
		"no metadata":    encode(func(m *layer.Manifest) { m.Meta = m.Data }),
		"chunk count":    encode(func(m *layer.Manifest) { m.Meta.Chunks = nil }),
		"chunk digest":   encode(func(m *layer.Manifest) { m.Meta.Chunks[0] = "../../x" }),
		"chunk size":     encode(func(m *layer.Manifest) { m.Data.ChunkSize = 0 }),
		"size":           encode(func(m *layer.Manifest) { m.Data.Size = -4096 }),
		"odd size":       encode(func(m *layer.Manifest) { m.Meta.Size = 8191 }),
		"overflow":       encode(func(m *layer.Manifest) { m.Data.Size = 1<<63 - 4096 }),
		"negative files": encode(func(m *layer.Manifest) { m.Files = -1 }),
	}
	for name, b := range cases {
		if _, err := layer.DecodeManifest(b, layer.DigestOf(b)); !errors.Is(err, layer.ErrDamaged) || !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := encode(func(m *layer.Manifest) { m.Version = 2 })
	if _, err := layer.DecodeManifest(b, layer.DigestOf(b)); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("a later version: %v", err)
	}
	if _, err := layer.DecodeManifest(b, layer.DigestOf([]byte("x"))); !errors.Is(err, layer.ErrDamaged) {
		t.Errorf("another digest: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	b, _, _ := manifest().Encode()
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := layer.DecodeManifest(b, layer.DigestOf(b))
		if err != nil {
			return
		}
		if _, _, err := m.Encode(); err != nil {
			t.Errorf("decoded but not encodable: %v", err)
		}
	})
}

func TestChunkerAgreesWithDescribe(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 5*layer.ChunkSize/32)
	for _, step := range []int{1 << 20, layer.ChunkSize, 4096, 100_001} {
		var c layer.Chunker
		for p := data; len(p) > 0; p = p[min(step, len(p)):] {
			_, _ = c.Write(p[:min(step, len(p))])
		}
		got := c.Blob()
		want, err := layer.Describe(t.Context(), bytes.NewReader(data), int64(len(data)))
		if err != nil || got.Size != want.Size || strings.Join(got.Chunks, "") != strings.Join(want.Chunks, "") {
			t.Errorf("step %d: %d bytes in %d chunks, %v", step, got.Size, len(got.Chunks), err)
		}
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "python:3.12": true, "team/app:v1": true, "a-b_c.d": true, "0": true,
		"": false, "A": false, "-a": false, "a/": false, "/a": false, "a//b": false, "a/.b": false, "a@v1": false, "a b": false, "a:": false,
		"..": false, "ü": false,
	} {
		if err := layer.CheckName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}
