package e2b

import (
	"strings"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// The bodies are what a client of version 2.51 sends.

func TestCreate(t *testing.T) {
	r := newRig(t)
	body := `{"templateID":"base","timeout":60,"allow_internet_access":false,"network":{"allowOut":["pypi.org","1.1.1.1/32"],"denyOut":["0.0.0.0/0"]},"metadata":{"a":"b"},"envVars":{"X":"1"}}`
	status, got := r.do(t, "POST", "/v2/sandboxes", control(), body)
	if status != 201 || field(t, got, "sandboxID") != boxID || field(t, got, "domain") != "example.org" || field(t, got, "envdAccessToken") == "" {
		t.Fatalf("%d %s", status, got)
	}
	spec := last[*dsecv1.CreateSandboxRequest](t, r.far).GetSpec()
	if spec.GetTtlSeconds() != 60 || spec.GetEnv()["X"] != "1" || spec.GetLabels()["e2b.metadata.a"] != "b" || spec.GetEnvironment().GetName() != "base" {
		t.Errorf("spec: %v", spec)
	}
	var rules []string
	for _, n := range spec.GetNetworkRules() {
		rules = append(rules, n.GetTarget())
	}
	if strings.Join(rules, " ") != "pypi.org 1.1.1.1/32" {
		t.Errorf("rules: %v", rules)
	}
	// Old and new clients mean different times when they say nothing.
	for path, want := range map[string]float64{"/sandboxes": 15, "/v2/sandboxes": 300} {
		if status, got := r.do(t, "POST", path, control(), `{"templateID":"base"}`); status != 201 {
			t.Fatalf("%d %s", status, got)
		}
		if ttl := last[*dsecv1.CreateSandboxRequest](t, r.far).GetSpec().GetTtlSeconds(); ttl != want {
			t.Errorf("%s without a timeout: %v seconds", path, ttl)
		}
	}
}

func TestLife(t *testing.T) {
	r := newRig(t)
	box := "/sandboxes/" + boxID
	for _, step := range []struct {
		method, path, body string
		status             int
		check              func() bool
	}{
		{"GET", box, "", 200, func() bool { return true }},
		{"POST", box + "/timeout", `{"timeout":120}`, 204, func() bool { return last[*dsecv1.ExtendSandboxRequest](t, r.far).GetTtlSeconds() == 120 }},
		{"POST", "/v2" + box + "/connect", "", 200, func() bool { return last[*dsecv1.ExtendSandboxRequest](t, r.far).GetTtlSeconds() == 300 }},
		{"POST", box + "/refreshes", `{"duration":1}`, 204, func() bool { return last[*dsecv1.ExtendSandboxRequest](t, r.far).GetTtlSeconds() == 300 }},
		{"POST", box + "/pause", `{}`, 204, func() bool { return last[*dsecv1.PauseSandboxRequest](t, r.far).GetSandboxId() == boxID }},
		{"POST", box + "/pause", `{}`, 409, func() bool { return true }},
		{"POST", "/v2" + box + "/connect", `{}`, 201, func() bool { return last[*dsecv1.ResumeSandboxRequest](t, r.far).GetSandboxId() == boxID }},
		{"POST", box + "/resume", `{}`, 409, func() bool { return true }},
		{"POST", box + "/snapshots", `{"name":"snap"}`, 201, func() bool { return last[*dsecv1.CreateSnapshotRequest](t, r.far).GetLabels()[labelName] == "snap" }},
		{"POST", box + "/fork", `{"count":2}`, 201, func() bool { return last[*dsecv1.ForkSandboxRequest](t, r.far).GetCount() == 2 }},
		{"PUT", box + "/network", `{"allowOut":["1.1.1.1"]}`, 204, func() bool { return len(last[*dsecv1.SetNetworkRequest](t, r.far).GetRules()) == 2 }},
		{"GET", "/v2/sandboxes?metadata=a%3Db%252520c&state=running,paused", "", 200, func() bool {
			l := last[*dsecv1.ListSandboxesRequest](t, r.far)
			return l.GetLabels()["e2b.metadata.a"] == "b c" && len(l.GetStates()) == 2
		}},
		{"DELETE", box, "", 204, func() bool { return last[*dsecv1.StopSandboxRequest](t, r.far).GetSandboxId() == boxID }},
	} {
		if status, got := r.do(t, step.method, step.path, control(), step.body); status != step.status || !step.check() {
			t.Errorf("%s %s: %d %s", step.method, step.path, status, got)
		}
	}
}

func TestBadControl(t *testing.T) {
	r := newRig(t)
	box := "/sandboxes/" + boxID
	for _, c := range []struct {
		method, path, body, want string
		status                   int
	}{
		{"POST", "/v2/sandboxes", `{`, "JSON", 400},
		{"POST", "/v2/sandboxes", `{}`, "templateID", 400},
		{"POST", "/v2/sandboxes", `{"templateID":"base","timeout":-1}`, "timeout", 400},
		{"POST", "/v2/sandboxes", `{"templateID":"base+fullvm"}`, "want +container or +microvm", 400},
		{"POST", "/v2/sandboxes", `{"templateID":"base","autoPause":true,"autoPauseMemory":false}`, "not supported", 400},
		{"POST", "/v2/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"v","path":"/v"}]}`, "not supported", 400},
		{"POST", "/v2/sandboxes", `{"templateID":"base","network":{"rules":{"a":[]}}}`, "not supported", 400},
		{"POST", "/v2/sandboxes", `{"templateID":"base","network":{"denyOut":["pypi.org"]}}`, "denyOut", 400},
		{"POST", "/v2/sandboxes", `{"templateID":"base","network":{"denyOut":["1.0.0.0/8"],"allowOut":["1.1.1.1"]}}`, "not supported", 400},
		{"POST", "/v2/sandboxes", `{"templateID":"base","metadata":{"a":"` + strings.Repeat("x", 257) + `"}}`, "metadata", 400},
		{"POST", "/v2" + box + "/connect", `{"memory":false}`, "not supported", 400},
		{"POST", box + "/pause", `{"memory":false}`, "not supported", 400},
		{"POST", box + "/snapshots", `{"memory":true}`, "not supported", 400},
		{"POST", box + "/fork", `{"count":101}`, "count", 400},
		{"POST", box + "/timeout", `{}`, "timeout", 400},
		{"GET", "/sandboxes/sabcdabcdefghijklmnp", "", "not found", 404},
		{"GET", "/sandboxes/..%2f..", "", "not found", 404},
		{"DELETE", "/sandboxes/nonsense", "", "not found", 404},
		{"GET", "/v2/sandboxes?limit=0", "", "limit", 400},
		{"GET", "/v2/sandboxes?state=odd", "", "state", 400},
		{"POST", "/v3/templates", `{"name":"T"}`, "lower-case", 400},
		{"POST", "/v3/templates", `{"name":"t","tags":["a/b"]}`, "slash", 400},
		{"POST", "/v2/templates/t/builds/none", `{"fromImage":"debian"}`, "no build", 404},
		{"GET", "/templates/t/builds/none/status", "", "no build", 404},
		{"GET", "/templates/t/files/xyz", "", "SHA-256", 400},
		{"GET", "/teams", "", "not supported", 400},
		{"GET", "/nothing", "", "does not have it", 404},
	} {
		if status, got := r.do(t, c.method, c.path, control(), c.body); status != c.status || !strings.Contains(got, c.want) || field(t, got, "code") != float64(c.status) {
			t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body, status, got)
		}
	}
	for _, path := range []string{"/sandboxes", "/v2/sandboxes", box, "/snapshots", "/templates"} {
		if status, got := r.do(t, "GET", path, map[string]string{"X-Api-Key": "e2b_1"}, ""); status != 401 || field(t, got, "code") != float64(401) {
			t.Errorf("%s with a wrong key: %d %s", path, status, got)
		}
	}
}
