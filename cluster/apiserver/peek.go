package apiserver

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/opendsec/dsec/sandbox"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// firstPeek holds nearly every request whole.
	firstPeek = 4 << 10
	// maxPeek bounds what is read, and what is unpacked, in search of sandbox_id.
	maxPeek = 1 << 20
	// envelope is the prefix of a message in a stream: one byte of flags, four of length.
	envelope = 5
)

// errMore says that the bytes at hand do not decide yet.
var errMore = errors.New("need more bytes")

// encoding of a request's message, from its headers.
type encoding struct {
	json      bool
	enveloped bool
	gzip      bool
}

// peekSandboxID returns field 1 (sandbox_id) of a request's first message, "" when it has none, and leaves the
// body as it was. Error: ErrInvalid.
func peekSandboxID(r *http.Request) (string, error) {
	enc, err := encodingOf(r)
	if err != nil {
		return "", err
	}
	if r.Body == nil {
		return "", nil
	}
	size := firstPeek
	if n := r.ContentLength; n >= 0 && n < firstPeek {
		size = int(n) + 1 // one more byte finds the end
	}
	raw := make([]byte, 0, size)
	body := r.Body
	ended := false
	defer func() {
		var rest io.Reader = bytes.NewReader(raw)
		if !ended {
			rest = io.MultiReader(rest, body)
		}
		r.Body = struct {
			io.Reader
			io.Closer
		}{rest, body}
	}()
	for {
		n, err := body.Read(raw[len(raw):cap(raw)])
		raw = raw[:len(raw)+n]
		if ended = err == io.EOF; err != nil && !ended {
			return "", fmt.Errorf("read request: %w: %w", sandbox.ErrInvalid, err)
		}
		if n > 0 || ended {
			id, err := find(raw, enc)
			if !errors.Is(err, errMore) {
				return id, err
			}
		}
		if ended {
			return "", nil // cut off: whoever gets it says so
		}
		if len(raw) >= maxPeek {
			return "", fmt.Errorf("%w: sandbox_id is not within the first %d bytes: put it first", sandbox.ErrInvalid, maxPeek)
		}
		if len(raw) == cap(raw) {
			raw = append(make([]byte, 0, min(2*cap(raw)+firstPeek, maxPeek)), raw...)
		}
	}
}

func encodingOf(r *http.Request) (encoding, error) {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		media = ""
	}
	enc, compression := encoding{}, ""
	switch media {
	case "application/json", "application/proto":
		enc.json, compression = media == "application/json", r.Header.Get("Content-Encoding")
	case "application/connect+json", "application/connect+proto":
		enc.enveloped, compression = true, r.Header.Get("Connect-Content-Encoding")
	case "application/grpc", "application/grpc+proto", "application/grpc+json",
		"application/grpc-web", "application/grpc-web+proto", "application/grpc-web+json":
		enc.enveloped, compression = true, r.Header.Get("Grpc-Encoding")
	default:
		return enc, fmt.Errorf("content type %.60q: %w: want application/json or application/proto (application/connect+json or +proto for streams)",
			r.Header.Get("Content-Type"), sandbox.ErrInvalid)
	}
	enc.json = enc.json || strings.HasSuffix(media, "+json")
	switch compression {
	case "", "identity":
	case "gzip":
		enc.gzip = true
	default:
		return enc, fmt.Errorf("compression %.20q: %w: want gzip or none", compression, sandbox.ErrInvalid)
	}
	return enc, nil
}

// find looks into the bytes at hand. errMore: they end too early.
func find(raw []byte, enc encoding) (string, error) {
	if enc.enveloped {
		if len(raw) < envelope {
			return "", errMore
		}
		enc.gzip = enc.gzip && raw[0]&1 != 0
		length := int64(raw[1])<<24 | int64(raw[2])<<16 | int64(raw[3])<<8 | int64(raw[4])
		raw = raw[envelope:]
		if int64(len(raw)) >= length {
			raw = raw[:length]
			id, err := findMessage(raw, enc)
			if errors.Is(err, errMore) { // the message is here whole, and broken
				return "", nil
			}
			return id, err
		}
	}
	return findMessage(raw, enc)
}

func findMessage(b []byte, enc encoding) (string, error) {
	if enc.gzip {
		var err error
		if b, err = unpack(b); err != nil {
			return "", err
		}
	}
	if enc.json {
		return findJSON(b)
	}
	return findProto(b)
}

// unpack returns as much of the packed message as the bytes at hand give.
func unpack(b []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errMore
	}
	if err != nil {
		return nil, fmt.Errorf("unpack request: %w: %w", sandbox.ErrInvalid, err)
	}
	out, err := io.ReadAll(io.LimitReader(z, maxPeek))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("unpack request: %w: %w", sandbox.ErrInvalid, err)
	}
	return out, nil
}

func findProto(b []byte) (string, error) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return "", protoError(n)
		}
		b = b[n:]
		if num == 1 && typ == protowire.BytesType {
			v, n := protowire.ConsumeString(b)
			if n < 0 {
				return "", protoError(n)
			}
			return v, nil
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return "", protoError(n)
		}
		b = b[n:]
	}
	return "", errMore
}

func protoError(n int) error {
	err := protowire.ParseError(n)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errMore
	}
	return fmt.Errorf("request is no protobuf message: %w: %w", sandbox.ErrInvalid, err)
}

func findJSON(b []byte) (string, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	depth, key := 0, true // key: the next string of depth 1 is a name
	name := ""
	for {
		t, err := d.Token()
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return "", errMore
		}
		if err != nil {
			return "", fmt.Errorf("request is no JSON object: %w: %w", sandbox.ErrInvalid, err)
		}
		switch v := t.(type) {
		case json.Delim:
			if v == '{' || v == '[' {
				if depth == 0 && v == '[' {
					return "", fmt.Errorf("request is no JSON object: %w", sandbox.ErrInvalid)
				}
				depth++
				continue
			}
			depth--
			if depth == 0 {
				return "", nil // the end of the object: there is none
			}
			key = depth == 1
			continue
		case string:
			if depth == 1 && key {
				name, key = v, false
				continue
			}
			if depth == 1 && (name == "sandboxId" || name == "sandbox_id") {
				return v, nil
			}
		}
		if depth == 0 {
			return "", fmt.Errorf("request is no JSON object: %w", sandbox.ErrInvalid)
		}
		key = key || depth == 1
	}
}
