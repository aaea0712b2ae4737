package e2b

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestPortsCredentials: of what a client sends to a port, the application's own goes in and keys of the platform do not, wherever they
// stand.
func TestPortsCredentials(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.RawQuery+"\n")
		_ = r.Header.Write(w)
	}))
	defer app.Close()
	secret := "e2b_" + strings.Repeat("0", 50) // of the shape that is issued
	r := newRig(t)
	r.far.port = strings.TrimPrefix(app.URL, "http://")
	key := strings.ToUpper(secret)
	status, got := r.do(t, "GET", "/x?a=own&key="+secret, map[string]string{
		headerSandbox: boxID, headerPort: "8000", headerToken: "token-of-it", headerTraffic: "traffic-of-it",
		"X-Api-Key": secret, "X-Other": key, "Authorization": "Bearer own", "Cookie": "b=own; k=" + secret,
	}, "")
	if status != 200 || strings.Contains(strings.ToLower(got), secret) || strings.Contains(got, "-of-it") {
		t.Errorf("what went in: %d %s", status, got)
	}
	for _, own := range []string{"a=own", "Authorization: Bearer own", "Cookie: b=own"} {
		if !strings.Contains(got, own) {
			t.Errorf("without %q: %s", own, got)
		}
	}
}
