package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"connectrpc.com/connect"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/sandbox"
)

// transfers serves file contents, archives and ports over plain HTTP. All of them stream: the window of the
// channel to dsec-init is the only buffer but one of copyBuffer bytes.
type transfers struct{ e *Edge }

const copyBuffer = 64 << 10

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, copyBuffer); return &b }}

// onlyWriter and onlyReader hide what else a value can, so that io.CopyBuffer uses the buffer.
type onlyWriter struct{ io.Writer }
type onlyReader struct{ io.Reader }

func copyStream(w io.Writer, r io.Reader) (int64, error) {
	b := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(b)
	return io.CopyBuffer(onlyWriter{w}, onlyReader{r}, *b)
}

// fail answers with an error as Connect's unary calls do. Once the body has begun, the connection is cut: a
// short body must not look like a whole one.
func fail(w http.ResponseWriter, err error, begun bool) {
	if begun {
		panic(http.ErrAbortHandler)
	}
	var c *connect.Error
	if !errors.As(wireError(err), &c) {
		c = connect.NewError(connect.CodeInternal, err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(httpStatus(c.Code()))
	_ = json.NewEncoder(w).Encode(struct {
		Code    string          `json:"code"`
		Message string          `json:"message"`
		Reason  string          `json:"reason,omitempty"`
		Failure json.RawMessage `json:"failure,omitempty"`
	}{c.Code().String(), strings.ToValidUTF8(c.Message(), "\uFFFD"), reason(err), failureJSON(err)})
}

// failureJSON is whose fault an error is, where that is known: of an ended sandbox, for example.
func failureJSON(err error) json.RawMessage {
	var f *sandbox.Failure
	if !errors.As(err, &f) {
		return nil
	}
	b, err := protojson.Marshal(failureProto(f))
	if err != nil {
		return nil
	}
	var compact bytes.Buffer // protojson puts spaces in at random
	if json.Compact(&compact, b) != nil {
		return nil
	}
	return compact.Bytes()
}

// reason is the word that tells refusals apart.
func reason(err error) string {
	var guest *wire.Error
	if errors.Is(err, errPaused) {
		return "paused"
	}
	if errors.As(err, &guest) {
		return guestCodes[guest.Code].word
	}
	return ""
}

// query is what the endpoints take. Paths are any bytes, percent-encoded.
type query struct {
	path, user string
	values     url.Values
}

func parseQuery(r *http.Request, known ...string) (*query, error) {
	v, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalid("query: %v", err)
	}
	for k := range v {
		if !contains(known, k) && k != "path" && k != "user" {
			return nil, invalid("query parameter %.64q is unknown: want path, user%s", k, strings.Join(append([]string{""}, known...), ", "))
		}
	}
	q := &query{path: v.Get("path"), user: v.Get("user"), values: v}
	if q.path == "" {
		return nil, invalid("the path is empty: give ?path=")
	}
	if err := checkUserAndDir(q.user, q.path); err != nil {
		return nil, err
	}
	if !utf8.ValidString(q.user) {
		return nil, invalid("user %q is not UTF-8", q.user)
	}
	return q, nil
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// number reads an optional number; absent = def.
func (q *query) number(name string, base int, def int64) (int64, error) {
	text := q.values.Get(name)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(text, base, 64)
	if err != nil || n < 0 {
		return 0, invalid("%s is %.64q: want a number of at least 0", name, text)
	}
	return n, nil
}

// serve passes the gate and runs fn; the sandbox is active while it runs.
func (t *transfers) serve(w http.ResponseWriter, r *http.Request, fn func(ctx context.Context, c *aether.Conn) (begun bool, err error)) {
	b, leave, err := t.e.enter(r.Context(), r.PathValue("id"))
	if err != nil {
		fail(w, err, false)
		return
	}
	defer leave()
	conn, _, err := b.channel()
	if err != nil {
		fail(w, err, false)
		return
	}
	if begun, err := fn(r.Context(), conn); err != nil {
		fail(w, err, begun)
	}
}

func (t *transfers) read(w http.ResponseWriter, r *http.Request) {
	q, err := parseQuery(r, "offset", "length")
	if err != nil {
		fail(w, err, false)
		return
	}
	offset, err1 := q.number("offset", 10, 0)
	length, err2 := q.number("length", 10, -1)
	if err := errors.Join(err1, err2); err != nil {
		fail(w, err, false)
		return
	}
	t.serve(w, r, func(ctx context.Context, c *aether.Conn) (bool, error) {
		f, info, err := c.OpenRead(ctx, q.path, q.user, offset, length)
		if err != nil {
			return false, err
		}
		defer f.Close()
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Dsec-File-Size", strconv.FormatInt(info.Size, 10))
		w.Header().Set("X-Dsec-File-Mode", strconv.FormatUint(uint64(info.Mode&^modeType), 8))
		n, err := copyStream(w, f)
		return n > 0, err
	})
}

// attributes are those that a file is to get. It has these afterwards and no others.
func (q *query) attributes() (out []wire.Attr, err error) {
	size := 0
	for _, text := range q.values["attribute"] {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" || len(name) > 255-len("user.") || strings.ContainsRune(name, 0) {
			return nil, invalid("attribute %.64q: want NAME=VALUE, the name of 1 to %d bytes", text, 255-len("user."))
		}
		out = append(out, wire.Attr{Name: name, Value: value})
		if size += len(name) + len(value); len(out) > wire.MaxAttrs || size > wire.MaxAttrsBytes {
			return nil, invalid("more than %d attributes, or more than %d bytes of them", wire.MaxAttrs, wire.MaxAttrsBytes)
		}
	}
	return out, nil
}

func (t *transfers) write(w http.ResponseWriter, r *http.Request) {
	q, err := parseQuery(r, "mode", "owner", "parents", "attribute")
	if err != nil {
		fail(w, err, false)
		return
	}
	mode, err := q.number("mode", 8, 0)
	if err != nil || mode > 0o7777 {
		fail(w, invalid("mode is %.16q: want permission bits in octal, at most 7777", q.values.Get("mode")), false)
		return
	}
	attrs, err := q.attributes()
	if err != nil {
		fail(w, err, false)
		return
	}
	open := &wire.OpenWrite{Attrs: attrs, Path: q.path, User: q.user, Mode: uint32(mode), Owner: q.values.Get("owner"), Parents: q.values.Get("parents") == "true"}
	t.serve(w, r, func(ctx context.Context, c *aether.Conn) (bool, error) {
		f, err := c.OpenWrite(ctx, open)
		return false, receive(ctx, f, err, w, r)
	})
}

// receive copies the body into dst and commits it; whatever is cut short leaves nothing.
func receive(ctx context.Context, dst aether.Writer, err error, w http.ResponseWriter, r *http.Request) error {
	if err != nil {
		return err
	}
	defer dst.Close()
	if _, err := copyStream(dst, r.Body); err != nil {
		return err
	}
	if err := dst.Commit(ctx); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (t *transfers) pack(w http.ResponseWriter, r *http.Request) {
	q, err := parseQuery(r)
	if err != nil {
		fail(w, err, false)
		return
	}
	t.serve(w, r, func(ctx context.Context, c *aether.Conn) (bool, error) {
		f, err := c.OpenTar(ctx, q.path, q.user)
		if err != nil {
			return false, err
		}
		defer f.Close()
		w.Header().Set("Content-Type", "application/x-tar")
		n, err := copyStream(w, f)
		return n > 0, err
	})
}

func (t *transfers) unpack(w http.ResponseWriter, r *http.Request) {
	q, err := parseQuery(r)
	if err != nil {
		fail(w, err, false)
		return
	}
	t.serve(w, r, func(ctx context.Context, c *aether.Conn) (bool, error) {
		f, err := c.Unpack(ctx, q.path, q.user)
		return false, receive(ctx, f, err, w, r)
	})
}
