package test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
	"google.golang.org/protobuf/proto"
)

// cli runs the command-line client as a user does and returns its exit code, output and errors. env wins over what
// reaches this node.
func (n *node) cli(env []string, args ...string) (code int, stdout, stderr string) {
	n.t.Helper()
	cfg := n.config()
	cmd := exec.CommandContext(n.t.Context(), filepath.Join(bin, "dsec"), args...)
	cmd.Env = append(append(os.Environ(), "XDG_CONFIG_HOME="+n.state, "DSEC_URL="+cfg.URL, "DSEC_API_KEY="+cfg.Key), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		n.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// refused runs the client, and wants an exit code and words on stderr.
func (n *node) refused(t *testing.T, code int, says []string, args ...string) {
	t.Helper()
	got, stdout, stderr := n.cli(nil, args...)
	if got != code || stdout != "" {
		t.Errorf("exit code %d, want %d; stdout %q\n%s", got, code, stdout, stderr)
	}
	for _, s := range says {
		if !strings.Contains(stderr, s) {
			t.Errorf("%q does not say %q", stderr, s)
		}
	}
}

// everything counts the sandboxes in any state.
func (n *node) everything(t *testing.T) int {
	t.Helper()
	req := &dsecv1.ListSandboxesRequest{PageSize: 1000}
	for s := range dsecv1.SandboxState_name {
		if s != 0 {
			req.States = append(req.States, dsecv1.SandboxState(s))
		}
	}
	r, err := n.Client.Sandboxes.ListSandboxes(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return len(r.GetSandboxes())
}

// TestBadInput gives a whole node what it must refuse, by the command line and by the API: each refusal has its code
// and says what is wrong, and nothing is made.
func TestBadInput(t *testing.T) {
	n := startNode(t)
	id := n.create(1, nil)[0]
	before := n.everything(t)

	run := func(flags ...string) []string { return append(append([]string{"run"}, flags...), "--", "true") }
	onBase := func(flags ...string) []string { return run(append([]string{"--base", base}, flags...)...) }
	for name, c := range map[string]struct {
		args []string
		code int
		says []string
	}{
		"UnknownBase":      {run("--base", "nosuch"), 125, []string{`base "nosuch"`, "not found", "dsec image import"}},
		"UnknownVersion":   {run("--base", base+"@v7"), 125, []string{"@v7", "it has v1"}},
		"UnknownImage":     {run("--image", "registry.invalid/nosuch:1"), 125, []string{"nosuch:1", "dsec image import docker://registry.invalid/nosuch:1"}},
		"UnknownWorkspace": {onBase("--workspace", "nosuch"), 125, []string{`workspace "nosuch"`, "dsec layer import --workspace"}},
		"NoMemory":         {onBase("--memory", "0"), 2, []string{"--memory", "above 0"}},
		"NoCPU":            {onBase("--cpus", "0"), 2, []string{"--cpus", "above 0"}},
		"NoPids":           {onBase("--pids", "0"), 2, []string{"--pids", "above 0"}},
		"NoDisk":           {onBase("--disk", "0"), 2, []string{"--disk", "above 0"}},
		"NoShm":            {onBase("--shm", "0"), 2, []string{"--shm", "above 0"}},
		"MemoryOfNoNode":   {onBase("--memory", "900t"), 125, []string{"memory_bytes", "on this node"}},
		"DiskAboveThePool": {onBase("--disk", "3g"), 125, []string{"disk_bytes", "2147483648 on this node"}},
		"PidsOfNoNode":     {onBase("--pids", "99999999"), 125, []string{"pids", "on this node"}},
		"CPUOfNoNode":      {onBase("--cpus", "90000"), 125, []string{"cpu_millis", "on this node"}},
		"ShmAboveMemory":   {onBase("--memory", "64m", "--shm", "65m"), 125, []string{"shm_bytes", "half"}},
		"NoTTL":            {onBase("--ttl", "0"), 2, []string{"--ttl", "above 0"}},
		"NegativeTTL":      {onBase("--ttl", "-5s"), 2, []string{"--ttl", "above 0"}},
		"EndlessTTL":       {onBase("--ttl", "90000h"), 125, []string{"ttl_seconds", "2592000"}},
		"NoCount":          {[]string{"create", "--base", base, "--count", "0"}, 2, []string{"--count 0"}},
		"ManyAtOnce":       {[]string{"create", "--base", base, "--count", "1001"}, 1, []string{"1001", "1000"}},
		"Network":          {onBase("--allow", "pypi"), 125, []string{"pypi", "network=on"}},
		"NotASandbox":      {[]string{"exec", "nonsense", "--", "true"}, 125, []string{`sandbox id "nonsense"`}},
		"NoSuchSandbox":    {[]string{"exec", id[:5] + "aaaaaaaaaaaaaaa", "--", "true"}, 125, []string{"not found", "never was on edge"}},
		"NoSuchUser":       {[]string{"exec", "-u", "nosuch", id, "--", "true"}, 126, []string{"user nosuch", "/etc/passwd"}},
		"NoSuchDirectory":  {[]string{"exec", "-w", "/nosuch", id, "--", "true"}, 126, []string{"/nosuch", "no such file or directory"}},
		"NoSuchProgram":    {[]string{"exec", id, "--", "nosuch"}, 127, []string{"nosuch", "no such program"}},
		"NotExecutable":    {[]string{"exec", id, "--", "/etc/passwd"}, 126, []string{"/etc/passwd", "permission denied"}},
		"NoSuchFile":       {[]string{"cp", id + ":/nosuch", t.TempDir()}, 1, []string{"/nosuch does not exist"}},
		"NotUTF8":          {[]string{"cp", id + ":/etc/\xff", t.TempDir()}, 1, []string{"UTF-8"}},
		"NotUTF8There":     {[]string{"cp", "badinput_test.go", id + ":/tmp/\xff"}, 1, []string{"UTF-8"}},
	} {
		t.Run(name, func(t *testing.T) { n.refused(t, c.code, c.says, c.args...) })
	}
	t.Run("API", func(t *testing.T) { n.badRequests(t, id) })
	t.Run("Key", n.badKeys)
	t.Run("Uploads", func(t *testing.T) { n.badUploads(t, id) })
	if after := n.everything(t); after != before {
		t.Errorf("%d sandboxes before, %d after", before, after)
	}
	n.answers(t, id)
	t.Run("IdempotencyKey", n.keyConflict)
	t.Run("Stopped", n.afterTheEnd)
}

// badRequests are those that only the API can say.
func (n *node) badRequests(t *testing.T, id string) {
	for name, c := range map[string]struct {
		edit func(*dsecv1.SandboxSpec)
		says string
	}{
		"NoTTL":          {func(s *dsecv1.SandboxSpec) { s.TtlSeconds = proto.Float64(0) }, "ttl_seconds is 0"},
		"NegativeTTL":    {func(s *dsecv1.SandboxSpec) { s.TtlSeconds = proto.Float64(-1) }, "ttl_seconds is -1"},
		"NegativeIdle":   {func(s *dsecv1.SandboxSpec) { s.IdleTimeoutSeconds = proto.Float64(-1) }, "idle_timeout_seconds is -1"},
		"NegativeMemory": {func(s *dsecv1.SandboxSpec) { s.Limits.MemoryBytes = -1 }, "memory_bytes is -1"},
		"NegativeDisk":   {func(s *dsecv1.SandboxSpec) { s.Limits.DiskBytes = -1 }, "disk_bytes is -1"},
		"NegativeCPU":    {func(s *dsecv1.SandboxSpec) { s.Limits.CpuMillis = -1 }, "cpu_millis is -1"},
		"NegativePids":   {func(s *dsecv1.SandboxSpec) { s.Limits.Pids = -1 }, "pids is -1"},
		"RelativeDir":    {func(s *dsecv1.SandboxSpec) { s.Workdir = "work" }, "workdir"},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec()
			c.edit(s)
			_, err := n.Client.Create(t.Context(), &dsecv1.CreateSandboxRequest{Spec: s})
			sandboxtest.WantCode(t, err, connect.CodeInvalidArgument, c.says)
		})
	}
	words := `{"sandboxId":"` + id + `","command":{"argv":["echo","` + strings.Repeat("x", 200<<20) + `"]}}`
	t.Run("ArgumentsOf200MB", func(t *testing.T) {
		n.refusedBody(t, "/dsec.v1.CommandService/Exec", strings.NewReader(words), "arguments and environment")
	})
	t.Run("ArgumentsOf200MBInChunks", func(t *testing.T) { // of a request that does not say its size
		n.refusedBody(t, "/dsec.v1.CommandService/Exec", io.MultiReader(strings.NewReader(words)), "arguments and environment")
	})
	t.Run("ArgumentsOf4MB", func(t *testing.T) { // above what the kernel takes, below what a request may have
		n.refusedBody(t, "/dsec.v1.CommandService/Exec", strings.NewReader(`{"sandboxId":"`+id+`","command":{"argv":["echo"`+strings.Repeat(`,"`+strings.Repeat("x", 1000)+`"`, 4000)+`]}}`),
			"arguments and environment")
	})
	t.Run("NotUTF8", func(t *testing.T) {
		n.refusedBody(t, "/dsec.v1.FileService/StatFile", strings.NewReader("{\"sandboxId\":\""+id+"\",\"path\":\"/\xff\"}"), "UTF-8")
	})
	t.Run("NotJSON", func(t *testing.T) {
		n.refusedBody(t, "/dsec.v1.SandboxService/ListSandboxes", strings.NewReader("states=all"), "")
	})
}

// refusedBody posts JSON, as curl would, and wants status 400 with an invalid_argument that says something.
func (n *node) refusedBody(t *testing.T, path string, body io.Reader, says string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+n.config().Key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusBadRequest || !bytes.Contains(answer, []byte(`"invalid_argument"`)) || !strings.Contains(string(answer), says) {
		t.Errorf("%s %.300s, %v", resp.Status, answer, err)
	}
}

func (n *node) badKeys(t *testing.T) {
	code, key, stderr := n.cli(nil, "key", "create", "short-lived")
	if key = strings.TrimSpace(key); code != 0 {
		t.Fatalf("key create: %s", stderr)
	}
	with := func(key string) (int, string) {
		code, _, stderr := n.cli([]string{"DSEC_API_KEY=" + key}, "ps")
		return code, stderr
	}
	if code, stderr := with(key); code != 0 {
		t.Fatalf("a new key: %s", stderr)
	}
	if code, _, stderr := n.cli(nil, "key", "revoke", strings.Split(key, "_")[1]); code != 0 {
		t.Fatalf("key revoke: %s", stderr)
	}
	for key, says := range map[string]string{
		key:                    "was revoked at",
		key[:len(key)-1] + "7": "", // another secret
		"dsec_aaaaaaaa_" + strings.Repeat("a", 32): "is not known",
		"nonsense": "has a wrong shape",
	} {
		if code, stderr := with(key); code != 1 || !strings.Contains(stderr, says) || !strings.Contains(stderr, "dsec key create") {
			t.Errorf("key %s: exit code %d, %q, want %q", key, code, stderr, says)
		}
	}
	wrong, err := client.New(client.Options{Config: client.Config{URL: n.URL, Key: key}})
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	_, err = wrong.Create(t.Context(), &dsecv1.CreateSandboxRequest{Spec: spec()})
	sandboxtest.WantCode(t, err, connect.CodeUnauthenticated, "revoked")
}

// badUploads tries to leave the directory that an archive is unpacked in, and the tree that a layer is.
func (n *node) badUploads(t *testing.T, id string) {
	n.must(id, "mkdir -p /tmp/up /tmp/out; echo untouched > /tmp/out/file")
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }
	for name, entries := range map[string][]tar.Header{
		"Dots":         {file("../out/file")},
		"InnerDots":    {file("a/../../out/file")},
		"SymbolicLink": {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../out"}, file("l/file")},
		"AbsoluteLink": {{Name: "abs", Typeflag: tar.TypeSymlink, Linkname: "/tmp/out"}, file("abs/file")},
		"HardLink":     {{Name: "h", Typeflag: tar.TypeLink, Linkname: "../out/file"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := n.Client.PutArchive(t.Context(), id, "/tmp/up", "", archive(t, entries))
			sandboxtest.WantCode(t, err, connect.CodeInvalidArgument)
			if got := n.must(id, "cat /tmp/out/file; ls /tmp/out | wc -l; stat -c %h /tmp/out/file"); got != "untouched\n1\n1\n" {
				t.Errorf("outside: %q", got)
			}
		})
	}
	for name, entries := range map[string][]tar.Header{
		"Dots":     {file("../../etc/escaped")},
		"HardLink": {file("a"), {Name: "h", Typeflag: tar.TypeLink, Linkname: "../../etc/passwd"}},
	} {
		t.Run("Layer"+name, func(t *testing.T) {
			_, err := n.Client.UploadLayer(t.Context(), client.Upload{Kind: "workspace", Name: "escapes"}, archive(t, entries), nil)
			sandboxtest.WantCode(t, err, connect.CodeInvalidArgument, "..")
		})
	}
	n.refused(t, 1, []string{"not a complete tar"}, "layer", "import", "--workspace", "escapes", "badinput_test.go")
	if _, out, _ := n.cli(nil, "layer", "ls"); strings.Contains(out, "escapes") {
		t.Errorf("a layer was made:\n%s", out)
	}
}

func archive(t *testing.T, entries []tar.Header) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range entries {
		if err := w.WriteHeader(&entries[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// keyConflict: a second creation with the same idempotency key is the first one, and with another body a conflict.
func (n *node) keyConflict(t *testing.T) {
	create := func(flags ...string) []string {
		return append([]string{"create", "--base", base, "--memory", "64m", "--idempotency-key", "once"}, flags...)
	}
	code, first, stderr := n.cli(nil, create()...)
	if code != 0 {
		t.Fatal(stderr)
	}
	before := n.everything(t)
	if code, again, stderr := n.cli(nil, create()...); code != 0 || again != first {
		t.Errorf("again: %d %q, first %q\n%s", code, again, first, stderr)
	}
	n.refused(t, 1, []string{"idempotency key", "another body", "new key"}, create("--ttl", "1h")...)
	n.refused(t, 1, []string{"another body"}, create("--count", "2")...)
	s := spec()
	s.Env = map[string]string{"A": "1"}
	_, err := n.Client.Create(t.Context(), &dsecv1.CreateSandboxRequest{Spec: s, IdempotencyKey: "once"})
	sandboxtest.WantCode(t, err, connect.CodeAlreadyExists, "another body")
	if after := n.everything(t); after != before {
		t.Errorf("%d sandboxes before, %d after", before, after)
	}
}

// afterTheEnd: what is asked of a sandbox that ended says when and why it did.
func (n *node) afterTheEnd(t *testing.T) {
	ttl := 0.5
	ids := n.create(3, func(s *dsecv1.SandboxSpec) { s.Labels = map[string]string{"end": "yes"} })
	expired := n.create(1, func(s *dsecv1.SandboxSpec) { s.TtlSeconds = &ttl })[0]
	if code, _, stderr := n.cli(nil, "stop", ids[0]); code != 0 {
		t.Fatal(stderr)
	}
	if code, _, stderr := n.cli(nil, "rm", "--label", "end=yes"); code != 0 {
		t.Fatal(stderr)
	}
	eventually(t, "its time to live runs out", func() bool {
		r, err := n.Client.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: expired})
		return err == nil && r.GetSandbox().GetState() == dsecv1.SandboxState_SANDBOX_STATE_STOPPED
	})
	for id, why := range map[string]string{ids[0]: "stopped (user)", ids[1]: "stopped (user)", expired: "ttl_expired (policy)"} {
		r, err := n.Client.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: id})
		if err != nil {
			t.Fatal(err)
		}
		says := []string{fmt.Sprintf("sandbox %s ended at %s", id, r.GetSandbox().GetEndedAt().AsTime().Format("2006-01-02T15:04:05Z")), why}
		n.refused(t, 125, says, "exec", id, "--", "true")
		n.refused(t, 1, says, "cp", "badinput_test.go", id+":/tmp/")
		n.refused(t, 1, says, "pause", id)
		n.refused(t, 1, says[:1], "forward", id, "0:80")
		_, err = n.exec(id, "true")
		sandboxtest.WantCode(t, err, connect.CodeFailedPrecondition, says...)
		if code, _, stderr := n.cli(nil, "stop", id); code != 0 {
			t.Errorf("stop again: %s", stderr)
		}
	}
}

// TestNodeIsFull: a node without room for one more sandbox refuses it before anything is made.
func TestNodeIsFull(t *testing.T) {
	total, err := linux.TotalMemory()
	if err != nil {
		t.Fatal(err)
	}
	n := startNode(t, "--opt", fmt.Sprintf("min-free=%d", total-1<<20)) // the kernel and this test use more
	create := []string{"create", "--base", base, "--memory", "64m"}
	n.refused(t, 1, []string{"resource exhausted", "of memory available", "another node"}, create...)
	n.refused(t, 125, []string{"of memory available"}, "run", "--base", base, "--", "true")
	_, err = n.Client.Create(t.Context(), &dsecv1.CreateSandboxRequest{Spec: spec(), Count: 3})
	sandboxtest.WantCode(t, err, connect.CodeResourceExhausted, "memory")
	if made := n.everything(t); made != 0 {
		t.Errorf("%d sandboxes were made", made)
	}
}
