package apiserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/linger"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
	"google.golang.org/protobuf/encoding/protojson"
)

// maxLine bounds one line of an import's answer.
const maxLine = 1 << 20

// uploadLayer streams PUT /v1/layers to the importer and its answer back: JSON lines of ImportLayerResponse, the
// last with the layer or an error.
func (s *Server) uploadLayer(w http.ResponseWriter, r *http.Request) {
	linger.Begin(w) // progress goes out while the body comes in, too
	if !s.passUpload(w, r) {
		linger.End(w, r.Body)
	}
}

// passUpload tells whether a layer was made.
func (s *Server) passUpload(w http.ResponseWriter, r *http.Request) (made bool) {
	im := s.importer
	if im == nil {
		s.writeError(w, r, errNoImporter)
		return false
	}
	up, err := readUpload(r.URL.Query())
	if err != nil {
		s.writeError(w, r, err)
		return false
	}
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPut, im.base+"/v1/layers?"+up.query, io.NopCloser(r.Body))
	if err != nil {
		s.writeError(w, r, err)
		return false
	}
	req.ContentLength = r.ContentLength
	for _, h := range []string{"Content-Type", "Content-Encoding"} {
		if v := r.Header.Get(h); v != "" {
			req.Header.Set(h, v)
		}
	}
	req.Header.Set(KeyHeader, keyOf(r.Context()).ID)
	rc := http.NewResponseController(w)
	resp, err := im.http.Do(req)
	if err != nil {
		s.writeError(w, r, im.failed(err))
		return false
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		for _, h := range []string{"Content-Type", "Content-Length"} {
			if v := resp.Header.Get(h); v != "" {
				w.Header().Set(h, v)
			}
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, io.LimitReader(resp.Body, maxLine))
		return false
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		line, last, made := s.importLine(r, up, lines.Bytes())
		if _, err := w.Write(append(line, '\n')); err != nil {
			return false
		}
		_ = rc.Flush()
		if last {
			return made
		}
	}
	err = lines.Err()
	if err == nil {
		err = errNoLayer
	}
	_, _ = w.Write(append(errorLine(im.failed(err)), '\n'))
	return false
}

// upload is what of an upload's URL is the catalogue's.
type upload struct {
	onStart *dsecv1.OnStart
	step    string
	query   string // for the importer
}

func readUpload(q url.Values) (*upload, error) {
	up := &upload{step: q.Get("step")}
	if argv := q["on_start"]; len(argv) > 0 {
		up.onStart = &dsecv1.OnStart{Argv: argv, User: q.Get("on_start_user")}
		if t := q.Get("on_start_timeout"); t != "" {
			var err error
			if up.onStart.TimeoutSeconds, err = strconv.ParseFloat(t, 64); err != nil {
				return nil, fmt.Errorf("upload: %w: on_start_timeout %.40q is not a number of seconds", sandbox.ErrInvalid, t)
			}
		}
		if err := checkOnStart(up.onStart); err != nil {
			return nil, fmt.Errorf("upload: %w", err)
		}
	}
	if up.step != "" {
		if q.Get("name") != "" {
			return nil, fmt.Errorf("upload: %w: it has a name and a step; give one", sandbox.ErrInvalid)
		}
		q.Set("name", "step") // for the importer's log
	}
	for _, k := range []string{"on_start", "on_start_user", "on_start_timeout", "step"} {
		q.Del(k)
	}
	up.query = q.Encode()
	return up, nil
}

// putStep keeps an imported layer as what a step of a build made.
func (s *Server) putStep(ctx context.Context, key string, l *dsecv1.Layer) error {
	if _, err := layer.ParseDigest(l.GetDigest()); err != nil { // it becomes part of a path at the importer's
		return fmt.Errorf("keep step of a build: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if err := s.importer.keep(ctx, l.GetDigest()); err != nil {
		return fmt.Errorf("keep step of a build: %w", err)
	}
	return s.o.Catalogue.PutStep(ctx, key, l)
}

// importLine publishes the layer when the line brings it, and returns the line to pass on; last = no other follows, made = it has the layer.
func (s *Server) importLine(r *http.Request, up *upload, line []byte) (out []byte, last, made bool) {
	msg := &dsecv1.ImportLayerResponse{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(line, msg); err != nil {
		return errorLine(fmt.Errorf("read the importer's answer: %w", err)), true, false
	}
	if msg.GetError() != nil {
		return slices.Clone(line), true, false
	}
	last = msg.GetLayer() != nil
	if last {
		var err error
		msg.Layer.OnStart = up.onStart
		if up.step != "" {
			msg.Layer.Name = ""
			err = s.putStep(r.Context(), up.step, msg.Layer)
		} else {
			msg, err = s.publish(r.Context(), msg)
		}
		if err != nil {
			return errorLine(err), true, false
		}
	}
	out, err := protojson.Marshal(msg)
	if err != nil {
		return errorLine(err), true, false
	}
	return out, last, last
}

func errorLine(err error) []byte {
	ce := connectError(err)
	b, _ := protojson.Marshal(&dsecv1.ImportLayerResponse{Error: &dsecv1.ImportError{Code: ce.Code().String(), Message: ce.Message()}})
	return b
}
