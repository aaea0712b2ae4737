package e2b

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	pb "github.com/opendsec/dsec/cluster/e2b/envd/filesystem"
	"github.com/opendsec/dsec/cluster/e2b/envd/filesystem/filesystemconnect"
)

// control sends a request of the control face; status 0 = nobody answered.
func (n *node) control(t *testing.T, method, path, body string) (status int, answer string) {
	t.Helper()
	url := path
	if strings.HasPrefix(path, "/") {
		url = n.url + path
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", n.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

type buildStatus struct {
	Status     string
	Logs       []string
	LogEntries []struct{ Message, Level, Step string }
	Reason     struct{ Message, Step string }
}

// await polls a build until done says so of an answer.
func (n *node) await(t *testing.T, template, build string, done func(buildStatus) bool) (s buildStatus) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		status, answer := n.control(t, "GET", "/templates/"+template+"/builds/"+build+"/status?logsOffset=0", "")
		s = buildStatus{}
		if status == 200 {
			if err := json.Unmarshal([]byte(answer), &s); err != nil {
				t.Fatal(err)
			}
			if done(s) {
				return s
			}
		}
		if time.Now().After(end) {
			t.Fatalf("it did not come to be in time: %d %s", status, answer)
		}
	}
}

// process returns the process of a role.
func (n *node) process(t *testing.T, role string) int {
	t.Helper()
	text, _ := n.Run(t.Context(), "status", "--json", "--state", n.state) // fails while a role does not answer, and says all the same
	var st struct {
		Up struct {
			Roles []struct {
				Name string
				PID  int
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &st); err != nil {
		t.Fatalf("status: %v\n%s", err, text)
	}
	for _, r := range st.Up.Roles {
		if r.Name == role {
			return r.PID
		}
	}
	t.Fatalf("no role %s in %s", role, text)
	return 0
}

// packed is a gzipped tar of one file.
func packed(t *testing.T, name, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestRestart: the API server is killed amid a build. Whoever waits hears that it failed and why, files that were uploaded are
// there still, nothing of the build runs on, and what cannot be kept is not found, with the reason.
func TestRestart(t *testing.T) {
	n := startNode(t)
	b := n.inside(t, "base")
	fs := filesystemconnect.NewFilesystemClient(b.http, n.url)
	watcher, err := fs.CreateWatcher(b.call(t.Context()), &pb.CreateWatcherRequest{Path: "/tmp"})
	if err != nil {
		t.Fatal(err)
	}
	announced := n.post(t, "/v3/templates", `{"name":"again"}`)
	build := between(announced, `"buildID":"`, `"`)
	archive := packed(t, "file", "contents")
	hash := fmt.Sprintf("%x", sha256.Sum256(archive))
	files := "/templates/again/files/" + hash
	_, there := n.control(t, "GET", files, "")
	to := between(there, `"url":"`, `"`)
	if status, answer := n.control(t, "PUT", to, string(archive)); status != 200 {
		t.Fatalf("upload to %s: %d %s", to, status, answer)
	}
	start := func(build, command string) {
		t.Helper()
		n.post(t, "/v2/templates/again/builds/"+build, fmt.Sprintf(
			`{"fromTemplate":"base","steps":[{"type":"COPY","args":["file","/home/user/file","",""],"filesHash":%q},{"type":"RUN","args":[%q]}]}`, hash, command))
	}
	start(build, "echo begun; sleep 600")
	n.await(t, "again", build, func(s buildStatus) bool { return strings.Contains(strings.Join(s.Logs, "\n"), "\nbegun") })
	waiting := between(n.post(t, "/v3/templates", `{"name":"later"}`), `"buildID":"`, `"`)

	killed := n.process(t, "apiserver")
	if err := syscall.Kill(killed, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s := n.await(t, "again", build, func(s buildStatus) bool { return s.Status != "building" })
	if s.Status != "error" || !strings.Contains(s.Reason.Message, "was restarted") || !strings.Contains(strings.Join(s.Logs, "\n"), "\nbegun") {
		t.Errorf("the build after the restart: %+v", s)
	}
	if _, answer := n.control(t, "GET", files, ""); !strings.Contains(answer, `"present":true`) {
		t.Errorf("the files after the restart: %s", answer)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		left, err := n.Client.Sandboxes.ListSandboxes(t.Context(), &dsecv1.ListSandboxesRequest{
			Labels: map[string]string{"e2b.build": build}, States: []dsecv1.SandboxState{dsecv1.SandboxState_SANDBOX_STATE_RUNNING},
		})
		if err == nil && len(left.GetSandboxes()) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the build's sandbox runs on: %v, %v", left, err)
		}
	}
	if _, err := fs.GetWatcherEvents(b.call(t.Context()), &pb.GetWatcherEventsRequest{WatcherId: watcher.GetWatcherId()}); connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), "restarted") {
		t.Errorf("a watcher of before: %v", err)
	}
	for what, path := range map[string]string{"a build that never was": "/templates/again/builds/x/status", "another template's": "/templates/later/builds/" + build + "/status"} {
		if status, answer := n.control(t, "GET", path, ""); status != 404 || !strings.Contains(answer, "has no build") {
			t.Errorf("%s: %d %s", what, status, answer)
		}
	}
	if status, answer := n.control(t, "POST", "/v2/templates/again/builds/"+build, `{"fromTemplate":"base"}`); status != 409 {
		t.Errorf("the same build once more: %d %s", status, answer)
	}
	// What was announced before can be started, and the files need not come again.
	n.post(t, "/v2/templates/later/builds/"+waiting, `{"fromTemplate":"base","steps":[]}`)
	second := between(n.post(t, "/v3/templates", `{"name":"again"}`), `"buildID":"`, `"`)
	start(second, "cat file")
	s = n.await(t, "again", second, func(s buildStatus) bool { return s.Status != "building" })
	if s.Status != "ready" || !strings.Contains(strings.Join(s.Logs, "\n"), "contents") {
		t.Errorf("built again: %+v", s)
	}
	if s := n.await(t, "later", waiting, func(s buildStatus) bool { return s.Status != "building" }); s.Status != "ready" {
		t.Errorf("built after the restart: %+v", s)
	}
	if got := n.inside(t, "again").run(t, "cat /home/user/file"); got != "contents" {
		t.Errorf("in the template: %q", got)
	}
	if left, err := os.ReadDir(filepath.Join(n.state, "e2b", "contexts")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
