package importer_test

import (
	"bytes"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/importer"
	"github.com/opendsec/dsec/layer/layertest"
	"github.com/opendsec/dsec/sandbox"
)

func (s *service) call(method, path string) int {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, "http://blobd/v1/layers/"+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

func (s *service) tiny() string {
	s.t.Helper()
	_, lines := s.put("kind=workspace&name=w", bytes.NewReader(layertest.Tar(s.t, layertest.Entry{Name: "f", Body: "x"})))
	return lines[len(lines)-1].GetLayer().GetDigest()
}

func TestRemove(t *testing.T) {
	s := start(t, importer.Options{Grace: time.Nanosecond})
	d := s.tiny()
	if code := s.call("POST", d+"/keep"); code != http.StatusNoContent {
		t.Errorf("keep: %d", code)
	}
	if code := s.call("DELETE", d); code != http.StatusNoContent {
		t.Fatalf("remove: %d", code)
	}
	if _, err := s.store.Get(t.Context(), layer.Digest(d)); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("after removal: %v", err)
	}
	for method, path := range map[string]string{"DELETE": d, "POST": d + "/keep"} {
		if code := s.call(method, path); code != http.StatusNotFound {
			t.Errorf("%s of what is gone: %d", method, code)
		}
	}
	if code := s.call("DELETE", "b3:nonsense"); code != http.StatusBadRequest {
		t.Errorf("no digest: %d", code)
	}
	if again := s.tiny(); again != d || s.call("POST", d+"/keep") != http.StatusNoContent {
		t.Errorf("imported again: %s", again)
	}
}

// What was imported a moment ago is not yet in anybody's catalogue.
func TestRemoveKeepsTheNew(t *testing.T) {
	s := start(t, importer.Options{Grace: time.Hour})
	d := s.tiny()
	if code := s.call("DELETE", d); code != http.StatusConflict {
		t.Errorf("remove: %d", code)
	}
	if _, err := s.store.Get(t.Context(), layer.Digest(d)); err != nil {
		t.Error(err)
	}
}
