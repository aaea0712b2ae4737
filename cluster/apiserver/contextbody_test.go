package apiserver

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/opendsec/dsec/sandbox"
)

// TestContextEnds: a server watches a connection once its request's body was read to the end.
func TestContextEnds(t *testing.T) {
	for size, want := range map[int]error{0: nil, 10 << 10: nil, maxTail: sandbox.ErrInvalid, 2 * maxTail: sandbox.ErrInvalid} {
		r := strings.NewReader(strings.Repeat("\x00", size))
		b := &contextBody{r: r, rc: http.NewResponseController(httptest.NewRecorder())}
		if err := b.end(); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if _, err := r.ReadByte(); want == nil && err != io.EOF {
			t.Errorf("%d bytes: something is left", size)
		}
	}
}
