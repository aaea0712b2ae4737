package apiserver

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"slices"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

// maxLine bounds one line of an import's answer.
const maxLine = 1 << 20

// uploadLayer streams PUT /v1/layers to the importer and its answer back: JSON lines of ImportLayerResponse, the
// last with the layer or an error.
func (s *Server) uploadLayer(w http.ResponseWriter, r *http.Request) {
	im := s.importer
	if im == nil {
		s.writeError(w, r, errNoImporter)
		return
	}
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPut, im.base+"/v1/layers?"+r.URL.RawQuery, r.Body)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	req.ContentLength = r.ContentLength
	for _, h := range []string{"Content-Type", "Content-Encoding"} {
		if v := r.Header.Get(h); v != "" {
			req.Header.Set(h, v)
		}
	}
	req.Header.Set(KeyHeader, keyOf(r.Context()).ID)
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex() // progress goes out while the body comes in
	resp, err := im.http.Do(req)
	if err != nil {
		s.writeError(w, r, im.failed(err))
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, io.LimitReader(resp.Body, maxLine))
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		line, last := s.importLine(r, lines.Bytes())
		if _, err := w.Write(append(line, '\n')); err != nil {
			return
		}
		_ = rc.Flush()
		if last {
			return
		}
	}
	err = lines.Err()
	if err == nil {
		err = errNoLayer
	}
	_, _ = w.Write(append(errorLine(im.failed(err)), '\n'))
}

// importLine publishes the layer when the line brings it, and returns the line to pass on.
func (s *Server) importLine(r *http.Request, line []byte) (out []byte, last bool) {
	msg := &dsecv1.ImportLayerResponse{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(line, msg); err != nil {
		return errorLine(fmt.Errorf("read the importer's answer: %w", err)), true
	}
	if msg.GetError() != nil {
		return slices.Clone(line), true
	}
	last = msg.GetLayer() != nil
	if last {
		var err error
		if msg, err = s.publish(r.Context(), msg); err != nil {
			return errorLine(err), true
		}
	}
	out, err := protojson.Marshal(msg)
	if err != nil {
		return errorLine(err), true
	}
	return out, last
}

func errorLine(err error) []byte {
	ce := connectError(err)
	b, _ := protojson.Marshal(&dsecv1.ImportLayerResponse{Error: &dsecv1.ImportError{Code: ce.Code().String(), Message: ce.Message()}})
	return b
}
