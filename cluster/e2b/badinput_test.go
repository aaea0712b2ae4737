package e2b

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
)

// TestUnknownSandbox: a sandbox that never was is not found on every path, in the words of the face that was asked.
func TestUnknownSandbox(t *testing.T) {
	r := newRig(t)
	const nobody = "sabcdabcdefghijklmnp"
	for _, c := range [][2]string{
		{"GET", "/sandboxes/ID"}, {"DELETE", "/sandboxes/ID"}, {"POST", "/sandboxes/ID/pause"}, {"POST", "/sandboxes/ID/resume"},
		{"POST", "/sandboxes/ID/connect"}, {"POST", "/v2/sandboxes/ID/connect"}, {"POST", "/sandboxes/ID/fork"}, {"POST", "/sandboxes/ID/timeout"},
		{"POST", "/sandboxes/ID/refreshes"}, {"PUT", "/sandboxes/ID/network"}, {"POST", "/sandboxes/ID/snapshots"}, {"GET", "/sandboxes/ID/logs"},
		{"GET", "/v2/sandboxes/ID/logs"}, {"GET", "/sandboxes/ID/metrics"},
	} {
		for _, id := range []string{nobody, "nonsense"} {
			path := strings.Replace(c[1], "ID", id, 1)
			if status, got := r.do(t, c[0], path, control(), `{"timeout":1,"duration":1}`); status != 404 || field(t, got, "code") != float64(404) {
				t.Errorf("%s %s: %d %s", c[0], path, status, got)
			}
		}
	}
	if status, got := r.do(t, "GET", "/", map[string]string{headerSandbox: nobody, headerPort: "8000"}, ""); status != http.StatusBadGateway {
		t.Errorf("a port: %d %s", status, got)
	}
}

// TestNotUTF8: bytes that are no text are refused where text is wanted, never changed and never an error of ours.
func TestNotUTF8(t *testing.T) {
	r := newRig(t)
	for _, c := range [][3]string{
		{"POST", "/v2/sandboxes", "{\"templateID\":\"base\",\"metadata\":{\"a\":\"\xff\"}}"},
		{"POST", "/v2/sandboxes", "{\"templateID\":\"b\xff\"}"},
		{"POST", "/v3/templates", "{\"name\":\"b\xff\"}"},
		{"POST", "/templates/tags", "{\"target\":\"b\xff\",\"tags\":[\"a\"]}"},
		{"GET", "/v2/sandboxes?metadata=a%3D%FF", ""}, {"GET", "/v2/sandboxes?nextToken=%FF", ""}, {"GET", "/v2/sandboxes?template=%FF", ""},
		{"GET", "/snapshots?sandboxID=%FF", ""}, {"GET", "/templates/aliases/%FF", ""}, {"GET", "/templates/%FF", ""}, {"DELETE", "/templates/%FF", ""},
		{"GET", "/templates/%FF/files/" + strings.Repeat("a", 64), ""}, {"GET", "/sandboxes/%FF", ""}, {"GET", "/sandboxes/" + boxID + "/logs?search=%FF", ""},
		{"GET", "/v2/sandboxes?limit=%F", ""},
	} {
		if status, got := r.do(t, c[0], c[1], control(), c[2]); status != 400 || field(t, got, "code") != float64(400) {
			t.Errorf("%s %s %q: %d %s", c[0], c[1], c[2], status, got)
		}
	}
	for _, body := range []string{"{\"path\":\"/\xff\"}", "{\"path\":\"/\\ud800\"}"} {
		if status, got := r.do(t, "POST", "/filesystem.Filesystem/Stat", inside(t, "application/json"), body); status != 400 {
			t.Errorf("%q: %d %s", body, status, got)
		}
	}
	if status, got := r.do(t, "POST", "/filesystem.Filesystem/Stat", inside(t, "application/proto"), "\x0a\x02/\xff"); status != 400 {
		t.Errorf("in the other codec: %d %s", status, got)
	}
	h := inside(t, "application/json")
	h["Authorization"] = "Basic " + base64.StdEncoding.EncodeToString([]byte("\xff:"))
	if status, got := r.do(t, "POST", "/filesystem.Filesystem/Stat", h, `{"path":"/x"}`); status != 401 {
		t.Errorf("a user: %d %s", status, got)
	}
	if status, got := r.do(t, "GET", "/files?path=/x&username=%FF", inside(t, ""), ""); status != 401 {
		t.Errorf("a user of a file: %d %s", status, got)
	}
	h = inside(t, "application/octet-stream")
	h["X-Metadata-A"] = "\xff"
	if status, got := r.do(t, "POST", "/files?path=/x", h, "x"); status != 400 || !strings.Contains(got, "printable ASCII") {
		t.Errorf("metadata: %d %s", status, got)
	}
	// Contents and names of files are any bytes.
	if status, got := r.do(t, "POST", "/files?path=/%FF", inside(t, "application/octet-stream"), "\xff"); status != 200 || r.far.files["/\xff"] != "\xff" {
		t.Errorf("a file: %d %s", status, got)
	}
}

// TestFileMetadata: what uploads may give a file, and what is too much.
func TestFileMetadata(t *testing.T) {
	r := newRig(t)
	for name, more := range map[string]map[string]string{
		"a long name":    {"X-Metadata-" + strings.Repeat("n", 129): "v"},
		"no name":        {"X-Metadata-": "v"},
		"a long value":   {"X-Metadata-A": strings.Repeat("v", 4096)},
		"a control byte": {"X-Metadata-A": "a\tb"},
	} {
		h := inside(t, "application/octet-stream")
		for k, v := range more {
			h[k] = v
		}
		if status, got := r.do(t, "POST", "/files?path=/meta", h, "x"); status != 400 || !strings.Contains(got, "etadata") {
			t.Errorf("%s: %d %s", name, status, got)
		}
	}
	if _, there := r.far.files["/meta"]; there {
		t.Error("it was written all the same")
	}
}
