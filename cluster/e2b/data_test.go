package e2b

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	pb "github.com/opendsec/dsec/cluster/e2b/envd/process"
)

func TestStart(t *testing.T) {
	r := newRig(t)
	h := inside(t, "application/connect+json")
	h["Authorization"], h["Connect-Timeout-Ms"] = "Basic cm9vdDo=", "60000"
	status, got := r.do(t, "POST", "/process.Process/Start", h, frame(`{"process":{"cmd":"/bin/bash","args":["-l","-c","sleep 1"],"envs":{"A":"b"},"cwd":"/tmp"},"stdin":true}`))
	if status != 200 || !strings.Contains(got, `"pid":7`) || !strings.Contains(got, `"/wo="`) || !strings.Contains(got, `"exitCode":3`) {
		t.Fatalf("%d %q", status, got)
	}
	c := last[*dsecv1.StartCommandRequest](t, r.far).GetCommand()
	if c.GetUser() != "root" || c.GetCwd() != "/tmp" || c.GetEnv()["A"] != "b" || !c.GetKeepStdinOpen() || len(c.GetArgv()) != 4 || c.GetTimeoutSeconds() > 60 || c.GetTimeoutSeconds() < 30 {
		t.Errorf("command: %v", c)
	}
	// The other codec.
	b, err := proto.Marshal(&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/bash"}, Pty: &pb.PTY{Size: &pb.PTY_Size{Cols: 80, Rows: 24}}})
	if err != nil {
		t.Fatal(err)
	}
	if status, got := r.do(t, "POST", "/process.Process/Start", inside(t, "application/connect+proto"), frame(string(b))); status != 200 || !strings.Contains(got, "\xff\n") {
		t.Fatalf("%d %q", status, got)
	}
	if c := last[*dsecv1.StartCommandRequest](t, r.far).GetCommand(); c.GetTerminal().GetColumns() != 80 || c.TimeoutSeconds != nil {
		t.Errorf("command: %v", c)
	}
}

func TestProcess(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		method, body string
		status       int
		check        func() bool
	}{
		{"Update", `{"process":{"pid":7},"pty":{"size":{"cols":100,"rows":40}}}`, 200, func() bool { return last[*dsecv1.ResizeTerminalRequest](t, r.far).GetSize().GetColumns() == 100 }},
		{"Update", `{"process":{"pid":7},"pty":{"size":{"cols":0,"rows":0}}}`, 400, nil},
		{"SendInput", `{"process":{"pid":7},"input":{"pty":"bHMK"}}`, 200, func() bool { return string(last[*dsecv1.SendInputRequest](t, r.far).GetData()) == "ls\n" }},
		{"SendInput", `{"process":{"tag":"t"},"input":{"stdin":"aGk="}}`, 200, func() bool { return string(last[*dsecv1.SendInputRequest](t, r.far).GetData()) == "hi" }},
		{"SendInput", `{"process":{"pid":8},"input":{"stdin":"aGk="}}`, 404, nil},
		{"SendInput", `{"input":{"stdin":"aGk="}}`, 400, nil},
		{"CloseStdin", `{"process":{"pid":7}}`, 200, func() bool { return last[*dsecv1.SendInputRequest](t, r.far).GetClose() }},
		{"SendSignal", `{"process":{"pid":7},"signal":"SIGNAL_SIGKILL"}`, 200, func() bool {
			s := last[*dsecv1.SignalCommandRequest](t, r.far)
			return s.GetSignal() == 9 && s.GetTree()
		}},
		{"SendSignal", `{"process":{"pid":7},"signal":"SIGNAL_SIGTERM"}`, 200, func() bool {
			s := last[*dsecv1.SignalCommandRequest](t, r.far)
			return s.GetSignal() == 15 && !s.GetTree()
		}},
		{"SendSignal", `{"process":{"pid":7}}`, 400, nil},
		{"List", `{}`, 200, nil},
		{"List", `{"no`, 400, nil},
	} {
		status, got := r.do(t, "POST", "/process.Process/"+c.method, inside(t, "application/json"), c.body)
		if status != c.status || c.check != nil && !c.check() {
			t.Errorf("%s %s: %d %s", c.method, c.body, status, got)
		}
	}
	// Frames that are none.
	for _, body := range []string{"", "\x00\x00", "\x00\xff\xff\xff\xff{}", frame("not json"), "\x08\x00\x00\x00\x02{}"} {
		if status, got := r.do(t, "POST", "/process.Process/Start", inside(t, "application/connect+json"), body); status != 200 || !strings.Contains(got, `"error"`) {
			t.Errorf("frame %q: %d %q", body, status, got)
		}
	}
}

func TestRouting(t *testing.T) {
	r := newRig(t)
	good := inside(t, "application/json")
	with := func(k, v string) map[string]string {
		h := inside(t, "application/json")
		h[k] = v
		return h
	}
	for name, c := range map[string]struct {
		header map[string]string
		path   string
		status int
		want   string
	}{
		"healthy":                {good, "/health", 204, ""},
		"another sandbox":        {with(headerSandbox, "sabcdabcdefghijklmnp"), "/health", 502, "was not found"},
		"no id":                  {with(headerSandbox, "../x"), "/health", 502, "was not found"},
		"no port":                {with(headerPort, "0"), "/health", 400, "port"},
		"wrong token":            {with(headerToken, "x"), "/envs", 401, "token"},
		"a token's prefix":       {with(headerToken, good[headerToken][:10]), "/envs", 401, "token"},
		"nothing there":          {good, "/no-such", 404, "no GET"},
		"an API key is no token": {map[string]string{headerSandbox: boxID, headerPort: "49983", "X-Api-Key": goodKey}, "/envs", 401, "token"},
	} {
		if status, got := r.do(t, "GET", c.path, c.header, ""); status != c.status || !strings.Contains(got, c.want) {
			t.Errorf("%s: %d %s", name, status, got)
		}
	}
	// A kill of the sandbox is seen by both services.
	r.far.box.State = dsecv1.SandboxState_SANDBOX_STATE_STOPPED
	if status, got := r.do(t, "GET", "/health", good, ""); status != 502 || !strings.Contains(got, "was not found") {
		t.Errorf("an ended one is healthy: %d %s", status, got)
	}
}

func TestFiles(t *testing.T) {
	r := newRig(t)
	form := "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/d/a.txt\"\r\n\r\n1\r\n--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/b.bin\"\r\n\r\nP\xff\r\n--B--\r\n"
	if status, got := r.do(t, "POST", "/files", inside(t, "multipart/form-data; boundary=B"), form); status != 200 || !strings.Contains(got, `"path":"/d/a.txt"`) {
		t.Fatalf("%d %s", status, got)
	}
	if r.far.files["/d/a.txt"] != "1" || r.far.files["/b.bin"] != "P\xff" {
		t.Errorf("files: %q", r.far.files)
	}
	if status, got := r.do(t, "POST", "/files?path=/o/../c", inside(t, "application/octet-stream"), "abc"); status != 200 || r.far.files["/c"] != "abc" {
		t.Errorf("%d %s", status, got)
	}
	for name, c := range map[string]struct {
		path, media, body string
		status            int
	}{
		"a form cut short":     {"/files", "multipart/form-data; boundary=B", form[:90], 400},
		"a form without files": {"/files", "multipart/form-data; boundary=B", "--B--\r\n", 400},
		"no path":              {"/files", "application/octet-stream", "x", 400},
		"a NUL":                {"/files?path=a%00b", "application/octet-stream", "x", 400},
	} {
		if status, got := r.do(t, "POST", c.path, inside(t, c.media), c.body); status != c.status {
			t.Errorf("%s: %d %s", name, status, got)
		}
	}
	if status, _ := r.do(t, "GET", "/files?path=/none", inside(t, ""), ""); status != 404 {
		t.Errorf("a missing file: %d", status)
	}
}

func TestSignatures(t *testing.T) {
	r := newRig(t)
	r.far.files["/s"] = "signed"
	token, _ := keys{}.SandboxToken(t.Context(), purposeEnvd, boxID)
	later, before := fmt.Sprint(time.Now().Add(time.Hour).Unix()), fmt.Sprint(time.Now().Add(-time.Minute).Unix())
	h := map[string]string{headerSandbox: boxID, headerPort: "49983"}
	get := func(path, user, sig, expires string) int {
		q := url.Values{"path": {path}, "signature": {sig}}
		if user != "" {
			q.Set("username", user)
		}
		if expires != "" {
			q.Set("signature_expiration", expires)
		}
		status, _ := r.do(t, "GET", "/files?"+q.Encode(), h, "")
		return status
	}
	for name, got := range map[string][2]int{
		"good":              {200, get("/s", "", signature("/s", "read", "", token, ""), "")},
		"good for a time":   {200, get("/s", "root", signature("/s", "read", "root", token, later), later)},
		"expired":           {401, get("/s", "", signature("/s", "read", "", token, before), before)},
		"made longer":       {401, get("/s", "", signature("/s", "read", "", token, before), later)},
		"without its end":   {401, get("/s", "", signature("/s", "read", "", token, before), "")},
		"another path":      {401, get("/t", "", signature("/s", "read", "", token, ""), "")},
		"another user":      {401, get("/s", "root", signature("/s", "read", "", token, ""), "")},
		"another operation": {401, get("/s", "", signature("/s", "write", "", token, ""), "")},
		"another token":     {401, get("/s", "", signature("/s", "read", "", "x", ""), "")},
		"none":              {401, get("/s", "", "", "")},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: want %d, got %d", name, got[0], got[1])
		}
	}
}
