package apiserver

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const someID = "sabcdefghij234567abc"

func pack(b []byte) []byte {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	_, _ = z.Write(b)
	_ = z.Close()
	return buf.Bytes()
}

func wrap(flags byte, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(b))), b...)
}

func TestPeek(t *testing.T) {
	msg := &dsecv1.ExecRequest{SandboxId: someID, Command: &dsecv1.CommandSpec{Argv: []string{"a"}, Stdin: bytes.Repeat([]byte("x"), 20000)}, OperationId: "o"}
	bin, err := proto.Marshal(msg)
	if err != nil {
		t.Fatal(err)
	}
	js, err := protojson.Marshal(msg)
	if err != nil {
		t.Fatal(err)
	}
	// Field 1 behind the others, as no encoder writes it and every decoder reads it.
	tail := protowire.AppendTag(nil, 1, protowire.BytesType)
	tail = protowire.AppendString(tail, someID)
	noID, _ := proto.Marshal(&dsecv1.ExecRequest{Command: msg.Command})
	late := append(bytes.Clone(noID), tail...)

	for _, c := range []struct {
		name, contentType, header, compression string
		body                                   []byte
		want                                   string
		bad                                    bool
	}{
		{"proto", "application/proto", "", "", bin, someID, false},
		{"proto, id last", "application/proto", "", "", late, someID, false},
		{"proto, no id", "application/proto", "", "", noID, "", false},
		{"proto, cut off", "application/proto", "", "", bin[:10], "", false},
		{"proto, empty", "application/proto", "", "", nil, "", false},
		{"proto, rubbish", "application/proto", "", "", []byte{7, 7, 7}, "", true},
		{"proto, gzip", "application/proto", "Content-Encoding", "gzip", pack(bin), someID, false},
		{"json", "application/json", "", "", js, someID, false},
		{"json with a charset", "application/json; charset=utf-8", "", "", js, someID, false},
		{"json, snake", "application/json", "", "", []byte(`{"sandbox_id":"` + someID + `"}`), someID, false},
		{"json, nested first", "application/json", "", "", []byte(`{"a":{"sandboxId":"no","b":["sandboxId","x",{}]},"c":[],"d":"sandboxId","e":1,"f":null,"sandboxId":"` + someID + `"}`), someID, false},
		{"json, far", "application/json", "", "", []byte(`{"a":"` + strings.Repeat("y", 300000) + `","sandboxId":"` + someID + `"}`), someID, false},
		{"json, too far", "application/json", "", "", []byte(`{"a":"` + strings.Repeat("y", maxPeek) + `","sandboxId":"` + someID + `"}`), "", true},
		{"json, none", "application/json", "", "", []byte(`{"labels":{"sandboxId":"x"}}`), "", false},
		{"json, number", "application/json", "", "", []byte(`{"sandboxId":5}`), "", false},
		{"json, no object", "application/json", "", "", []byte(`["sandboxId","x"]`), "", true},
		{"json, a string", "application/json", "", "", []byte(`"sandboxId"`), "", true},
		{"json, rubbish", "application/json", "", "", []byte(`{]`), "", true},
		{"json, gzip", "application/json", "Content-Encoding", "gzip", pack(js), someID, false},
		{"json, bad gzip", "application/json", "Content-Encoding", "gzip", js, "", true},
		{"json, brotli", "application/json", "Content-Encoding", "br", js, "", true},
		{"stream proto", "application/connect+proto", "", "", wrap(0, bin), someID, false},
		{"stream json", "application/connect+json", "", "", wrap(0, js), someID, false},
		{"stream gzip", "application/connect+json", "Connect-Content-Encoding", "gzip", wrap(1, pack(js)), someID, false},
		{"stream gzip offered, not used", "application/connect+json", "Connect-Content-Encoding", "gzip", wrap(0, js), someID, false},
		{"stream, no id and more after it", "application/connect+proto", "", "", append(wrap(0, noID[:0]), wrap(0, bin)...), "", false},
		{"grpc", "application/grpc", "", "", wrap(0, bin), someID, false},
		{"grpc-web json", "application/grpc-web+json", "", "", wrap(0, js), someID, false},
		{"form", "application/x-www-form-urlencoded", "", "", js, "", true},
		{"nothing", "", "", "", js, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, read := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.HalfReader, iotest.DataErrReader} {
				r := httptest.NewRequest("POST", "/", read(bytes.NewReader(c.body)))
				r.Header.Set("Content-Type", c.contentType)
				if c.header != "" {
					r.Header.Set(c.header, c.compression)
				}
				got, err := peekSandboxID(r)
				if (err != nil) != c.bad || got != c.want {
					t.Fatalf("got %q, %v", got, err)
				}
				if rest, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(rest, c.body) {
					t.Fatalf("the body changed: %d of %d bytes, %v", len(rest), len(c.body), err)
				}
			}
		})
	}
}

func FuzzPeek(f *testing.F) {
	f.Add("application/json", []byte(`{"sandboxId":"x"}`))
	f.Add("application/connect+proto", wrap(0, []byte{10, 1, 'x'}))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		r := httptest.NewRequest("POST", "/", bytes.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		_, _ = peekSandboxID(r)
		if rest, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(rest, body) {
			t.Fatalf("the body changed: %d of %d bytes, %v", len(rest), len(body), err)
		}
	})
}

func BenchmarkPeek(b *testing.B) {
	msg, _ := proto.Marshal(&dsecv1.ExecRequest{SandboxId: someID, Command: &dsecv1.CommandSpec{Argv: []string{"true"}}})
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest("POST", "/", bytes.NewReader(msg))
		r.Header.Set("Content-Type", "application/proto")
		_, _ = peekSandboxID(r)
	}
}
