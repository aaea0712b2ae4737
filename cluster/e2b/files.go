package e2b

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// maxParts bounds the files of one upload.
const maxParts = 1000

// fileError reads an error of the API's plain HTTP, so that it looks like one of its services.
func fileError(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	var body struct {
		Code, Message, Reason string
		Failure               json.RawMessage
	}
	if json.Unmarshal(b, &body) != nil || body.Code == "" {
		return refused(http.StatusInternalServerError, "the API answered %s", resp.Status)
	}
	var code connect.Code
	if code.UnmarshalText([]byte(body.Code)) != nil {
		code = connect.CodeInternal
	}
	err := connect.NewError(code, errors.New(body.Message))
	if body.Reason != "" {
		if d, derr := connect.NewErrorDetail(&dsecv1.Error{Code: body.Reason, Message: body.Message}); derr == nil {
			err.AddDetail(d)
		}
	}
	if len(body.Failure) > 0 {
		if d, derr := connect.NewErrorDetail(&dsecv1.Failure{Message: body.Message}); derr == nil {
			err.AddDetail(d)
		}
	}
	return err
}

// fileRequest is a request about contents that was let in.
type fileRequest struct {
	ctx  context.Context
	path string // as asked
	user string
	// metadata that what is written gets.
	metadata map[string]string
}

// fileRequest lets in who has the sandbox's token, or a signature over what is asked.
func (d *Door) fileRequest(r *http.Request, operation string) (*fileRequest, error) {
	v := r.URL.Query()
	f := &fileRequest{ctx: r.Context(), path: v.Get("path"), user: v.Get("username")}
	if !utf8.ValidString(f.user) {
		return nil, refused(http.StatusUnauthorized, "invalid username: %.40q is not UTF-8", f.user)
	}
	if r.Header.Get(headerToken) != "" || v.Get("signature") == "" {
		if err := d.admit(r); err != nil {
			return nil, err
		}
		if f.user == "" {
			f.user = targetOf(r.Context()).user
		}
		return f, nil
	}
	return f, d.checkSignature(r, operation, f)
}

// failFile answers with an error in the words of old and new clients.
func failFile(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case word(err) == "no_such_user":
		err = refused(http.StatusUnauthorized, "%s", noSuchUser(message(err)))
	case word(err) == "is_a_directory", word(err) == "not_a_directory":
		err = refused(http.StatusBadRequest, "%s", message(err))
	}
	writeData(w, r, err)
}

// readFile streams a file.
func (d *Door) readFile(w http.ResponseWriter, r *http.Request) {
	f, err := d.fileRequest(r, "read")
	if err != nil {
		failFile(w, r, err)
		return
	}
	p, err := d.absolute(f.ctx, f.path, f.user)
	if err != nil {
		failFile(w, r, err)
		return
	}
	q := url.Values{"path": {p}}
	if f.user != "" {
		q.Set("user", f.user)
	}
	resp, err := d.get(f.ctx, q)
	if err != nil {
		failFile(w, r, err)
		return
	}
	defer resp.Body.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Vary", "Accept-Encoding")
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(p)}))
	var out io.Writer = w
	var body io.Reader = resp.Body
	if acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
		defer func() {
			if err == nil {
				err = z.Close()
			}
		}()
		out = z
	} else if size, serr := strconv.ParseInt(resp.Header.Get("X-Dsec-File-Size"), 10, 64); serr == nil && size > 0 {
		// As long as it was when it was opened. What the kernel makes up while it is read says 0.
		h.Set("Content-Length", strconv.FormatInt(size, 10))
		body = io.LimitReader(body, size)
	}
	if _, err = io.Copy(out, body); err != nil {
		panic(http.ErrAbortHandler) // a short body must not look like a whole one
	}
}

func acceptsGzip(r *http.Request) bool {
	for _, e := range commas(r.Header.Values("Accept-Encoding")) {
		name, params, _ := strings.Cut(e, ";")
		if strings.TrimSpace(name) == "gzip" && strings.ReplaceAll(params, " ", "") != "q=0" {
			// Downloads that nobody asked to be packed stay as they are: most clients send the header without thinking.
			return !strings.Contains(r.Header.Get("Accept-Encoding"), ",")
		}
	}
	return false
}

// written is one file of an upload.
type written struct {
	Path string `json:"path"`
	Name string `json:"name"`
	Type string `json:"type"`
	// As it was given.
	Metadata map[string]string `json:"metadata,omitempty"`
}

// writeFiles takes one file as a body of bytes, or any number as a form.
func (d *Door) writeFiles(w http.ResponseWriter, r *http.Request) {
	f, err := d.fileRequest(r, "write")
	if err != nil {
		failFile(w, r, err)
		return
	}
	if f.metadata, err = metadataOfFile(r.Header); err != nil {
		failFile(w, r, err)
		return
	}
	body := io.Reader(r.Body)
	switch e := r.Header.Get("Content-Encoding"); e {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			failFile(w, r, refused(http.StatusBadRequest, "the body is not gzip: %v", err))
			return
		}
		body = z
	default:
		failFile(w, r, unsupported("Content-Encoding %.40s: gzip or none", e))
		return
	}
	media, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	var out []written
	if media == "multipart/form-data" {
		out, err = d.writeForm(f, multipart.NewReader(body, params["boundary"]))
	} else {
		var one written
		one, err = d.writeOne(f, f.path, body)
		out = []written{one}
	}
	if err != nil {
		failFile(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, out)
}

// writeForm writes each part named "file" to the path of the query, else to its own file name.
func (d *Door) writeForm(f *fileRequest, form *multipart.Reader) ([]written, error) {
	out := []written{}
	for n := 0; ; n++ {
		part, err := form.NextRawPart()
		switch {
		case err == io.EOF:
			if len(out) == 0 {
				return nil, refused(http.StatusBadRequest, "the form has no part named file")
			}
			return out, nil
		case err != nil:
			return nil, refused(http.StatusBadRequest, "the form broke off: %v", err)
		case n >= maxParts:
			return nil, unsupported("more than %d parts in one upload", maxParts)
		}
		if part.FormName() != "file" {
			continue
		}
		to := f.path
		if to == "" {
			// Part.FileName would keep the last name only.
			_, params, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
			to = params["filename"]
		}
		one, err := d.writeOne(f, to, part)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
}

// broken remembers why a body ended early: that is the client's doing, and not the API's.
type broken struct {
	io.Reader
	err error
}

func (b *broken) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

func (d *Door) writeOne(f *fileRequest, to string, from io.Reader) (written, error) {
	if to == "" {
		return written{}, refused(http.StatusBadRequest, "the path is missing")
	}
	p, err := d.absolute(f.ctx, to, f.user)
	if err != nil {
		return written{}, err
	}
	q := url.Values{"path": {p}, "parents": {"true"}}
	if f.user != "" {
		q.Set("user", f.user)
	}
	for k, v := range f.metadata {
		q.Add("attribute", attributePrefix+k+"="+v)
	}
	b := &broken{Reader: from}
	resp, err := d.do(f.ctx, http.MethodPut, q, b)
	switch {
	case b.err != nil:
		if err == nil {
			resp.Body.Close()
		}
		return written{}, refused(http.StatusBadRequest, "the upload of %s broke off: %v", p, b.err)
	case err != nil:
		return written{}, err
	}
	resp.Body.Close()
	return written{p, path.Base(p), "file", f.metadata}, nil
}
