package importer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/linger"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/disk"
	"github.com/opendsec/dsec/layer/oci"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/sandbox"
)

// upload answers PUT /v1/layers: the body is a tar or an image archive, the answer JSON lines.
func (s *service) upload(w http.ResponseWriter, r *http.Request) {
	body := newUploadBody(w, r, s.o.Stall)
	linger.Begin(w) // progress goes out while the body comes in, too
	j, err := s.uploadJob(r, body)
	if err != nil {
		refuse(w, err)
		linger.End(w, r.Body)
		return
	}
	rc := http.NewResponseController(w)
	begun := false
	send := func(m *dsecv1.ImportLayerResponse) error {
		line, err := protojson.Marshal(m)
		if err != nil {
			return err
		}
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "application/x-ndjson")
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return fmt.Errorf("%w: the client is gone: %w", context.Canceled, err)
		}
		return rc.Flush()
	}
	err = s.do(r.Context(), j, send)
	if err == nil {
		return
	}
	if body.stalled.Load() { // the transport cancels the request as well
		err = fmt.Errorf("upload: %w: nothing came for %v", sandbox.ErrDeadline, s.o.Stall)
	}
	if begun {
		err = send(&dsecv1.ImportLayerResponse{Error: importError(err)})
	} else {
		refuse(w, err)
		err = nil
	}
	if err == nil && !body.stalled.Load() {
		linger.End(w, r.Body)
	}
}

// uploadJob reads the URL.
func (s *service) uploadJob(r *http.Request, body *uploadBody) (*job, error) {
	q := r.URL.Query()
	kind, ok := kinds[q.Get("kind")]
	if !ok {
		return nil, fmt.Errorf("upload: %w: kind %.40q; want base, workspace or toolkit", sandbox.ErrInvalid, q.Get("kind"))
	}
	j := &job{kind: kind, name: q.Get("name"), prefix: q.Get("prefix"), source: q.Get("source")}
	if over := q.Get("over"); over != "" {
		j.over = strings.Split(over, ",")
	}
	if len(j.source) > 4096 {
		return nil, fmt.Errorf("upload: %w: source of %d bytes", sandbox.ErrInvalid, len(j.source))
	}
	size := max(r.ContentLength, 0)
	received := func(stage string, p oci.Progress) io.Reader {
		return &countReader{r: body, add: func(n int64) { p(stage, n, size) }}
	}
	switch format := q.Get("format"); format {
	case "", "tar":
		j.fill = func(ctx context.Context, b *tree.Builder, _ string, p oci.Progress) (layer.Config, error) {
			defer context.AfterFunc(ctx, body.abort)()
			return layer.Config{}, b.AddTar(ctx, received("convert", p), tree.Plain)
		}
	case "oci":
		j.fill = func(ctx context.Context, b *tree.Builder, dir string, p oci.Progress) (layer.Config, error) {
			defer context.AfterFunc(ctx, body.abort)()
			return s.addArchive(ctx, b, dir, received("pull", p), p)
		}
	case "disk":
		firmware, err := disk.ParseFirmware(q.Get("firmware"))
		if err != nil {
			return nil, fmt.Errorf("upload: %w", err)
		}
		agent := q.Get("agent") == "true"
		if j.kind != dsecv1.LayerKind_LAYER_KIND_BASE || j.prefix != "" || len(j.over) > 0 {
			return nil, fmt.Errorf("upload: %w: a disk is a base of its own: leave prefix and over out", sandbox.ErrInvalid)
		}
		j.fill = func(ctx context.Context, b *tree.Builder, dir string, p oci.Progress) (layer.Config, error) {
			defer context.AfterFunc(ctx, body.abort)()
			return s.addDisk(ctx, b, dir, received("pull", p), firmware, agent, p)
		}
	default:
		return nil, fmt.Errorf("upload: %w: format %.40q; want tar, oci or disk", sandbox.ErrInvalid, format)
	}
	return j, j.check()
}

// addArchive keeps an image archive in a file, because its parts come in any order, and adds the image.
func (s *service) addArchive(ctx context.Context, b *tree.Builder, dir string, r io.Reader, p oci.Progress) (layer.Config, error) {
	plain, err := tree.Decompress(r)
	if err != nil {
		return layer.Config{}, err
	}
	defer plain.Close()
	f, err := os.OpenFile(filepath.Join(dir, "archive"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return layer.Config{}, err
	}
	defer f.Close()
	size, err := s.spool(ctx, f, plain)
	if err != nil {
		return layer.Config{}, fmt.Errorf("receive image archive: %w", err)
	}
	img, err := oci.OpenArchive(ctx, f, size, s.o.Registry.Platform)
	if err != nil {
		return layer.Config{}, err
	}
	return img.Config, img.AddTo(ctx, b, dir, p)
}

// spool copies a stream to a file, within the limits of size and space.
func (s *service) spool(ctx context.Context, f *os.File, r io.Reader) (int64, error) {
	const step = 64 << 20
	limit := s.o.Limits.Bytes
	if limit == 0 {
		limit = tree.DefaultLimits.Bytes
	}
	for size := int64(0); ; {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if size > limit {
			return 0, fmt.Errorf("%w: more than %d MiB", sandbox.ErrExhausted, limit>>20)
		}
		if err := tree.CheckSpace(f.Name(), step+s.o.MinFree); err != nil {
			return 0, err
		}
		n, err := io.CopyN(f, r, step)
		size += n
		if err == io.EOF {
			return size, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// uploadBody is a request's body whose reader cannot wait for ever.
type uploadBody struct {
	io.Reader
	rc    *http.ResponseController
	stall time.Duration
	next  time.Time // when the deadline is moved again
	total int64

	deadline time.Time
	stalled  atomic.Bool
}

func newUploadBody(w http.ResponseWriter, r *http.Request, stall time.Duration) *uploadBody {
	return &uploadBody{Reader: r.Body, rc: http.NewResponseController(w), stall: stall}
}

func (b *uploadBody) Read(p []byte) (int, error) {
	if now := time.Now(); now.After(b.next) {
		b.deadline = now.Add(b.stall)
		_ = b.rc.SetReadDeadline(b.deadline) // a transport without deadlines has the import's
		b.next = now.Add(b.stall / 8)
	}
	n, err := b.Reader.Read(p)
	b.total += int64(n)
	switch {
	case err == nil || err == io.EOF:
		return n, err
	case errors.Is(err, os.ErrDeadlineExceeded) && !time.Now().Before(b.deadline):
		b.stalled.Store(true)
	}
	return n, fmt.Errorf("upload: %w: cut off after %d bytes: %w", sandbox.ErrUnavailable, b.total, err)
}

// abort wakes a reader that waits.
func (b *uploadBody) abort() { _ = b.rc.SetReadDeadline(time.Unix(1, 0)) }

type countReader struct {
	r   io.Reader
	n   int64
	add func(total int64)
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.n += int64(n); n > 0 {
		c.add(c.n)
	}
	return n, err
}

// refuse answers a request of which nothing has been answered yet.
func refuse(w http.ResponseWriter, err error) {
	e := importError(err)
	text, _ := json.Marshal(map[string]string{"code": e.Code, "message": e.Message})
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text))) // whole before what is sent was read
	w.WriteHeader(status(code(err)))
	_, _ = w.Write(text)
}
