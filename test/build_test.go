package test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/build"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/sandbox"
)

const dockerfile = `ARG BASE=nothing
FROM $BASE
ARG V=1
ENV APP=/app GREETING="hello $V"
LABEL who=me
WORKDIR $APP
COPY src ./src/
COPY --chown=www-data:daemon --chmod=0640 src/a.txt owned.txt
COPY tool /bin/
RUN useradd -m u; echo "$GREETING $V $PWD" > made.txt && rm -f /etc/motd
USER u
RUN id -un > /home/u/who && tool x
EXPOSE 80
ENTRYPOINT ["tool"]
CMD ["arg"]
`

// builds is a context and what builds it.
type builds struct {
	n   *node
	dir string
}

func (b builds) file(name, text string, mode os.FileMode) {
	b.n.t.Helper()
	p := filepath.Join(b.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), mode), os.Chmod(p, mode)); err != nil {
		b.n.t.Fatal(err)
	}
}

func (b builds) build(text string, args map[string]string) (*build.Result, string, error) {
	b.n.t.Helper()
	f, err := build.Parse([]byte(text))
	if err != nil {
		b.n.t.Fatal(err)
	}
	c, err := build.OpenContext(b.dir)
	if err != nil {
		b.n.t.Fatal(err)
	}
	defer c.Close()
	var out bytes.Buffer
	r, err := build.Build(b.n.t.Context(), f, build.Options{Client: b.n.Client, Name: "app", Context: c, Args: args,
		Limits: &dsecv1.Limits{MemoryBytes: 256 << 20, DiskBytes: 256 << 20}, StepTimeout: 2 * time.Minute,
		Output: func(p []byte) error { out.Write(p); return nil }})
	return r, out.String(), err
}

// A Dockerfile becomes a base: files keep to the base's links and directories, commands run in sandboxes as the image's user,
// what was done is not done again, and what it says of running holds.
func TestBuild(t *testing.T) {
	n := startNode(t)
	b := builds{n, t.TempDir()}
	b.file("src/a.txt", "hi\n", 0o644)
	b.file("src/sub/b", "sub\n", 0o600)
	b.file("src/x.log", "no\n", 0o644)
	b.file("tool", "#!/bin/sh\necho tool $1\n", 0o755)
	b.file(".dockerignore", "**/*.log\n", 0o644)
	if err := os.Symlink("a.txt", filepath.Join(b.dir, "src", "l")); err != nil {
		t.Fatal(err)
	}
	args := map[string]string{"BASE": base}
	first, out, err := b.build(dockerfile, args)
	if err != nil || !strings.Contains(out, "tool x") {
		t.Fatalf("%v\n%s", err, out)
	}
	id := n.create(1, func(s *dsecv1.SandboxSpec) { s.Environment.Base = "app" })[0]
	got := n.must(id, `id -un; pwd; cat made.txt src/l src/../src/a.txt /home/u/who; stat -c '%U:%G %a' owned.txt src /home/u; readlink /bin; test ! -e /etc/motd && test ! -e src/x.log && echo $GREETING && test ! -r src/sub/b && tool y`)
	want := "u\n/app\nhello 1 1 /app\nhi\nhi\nu\nwww-data:daemon 640\nroot:root 755\nu:u 700\nusr/bin\nhello 1\ntool y\n"
	if got != strings.Replace(want, "u:u 700", n.must(id, "stat -c '%U:%G %a' /home/u")[:len("u:u 755")], 1) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if c := first.Layer.GetConfig(); c.GetUser() != "u" || c.GetWorkdir() != "/app" || fmt.Sprint(c.GetEntrypoint(), c.GetCmd(), c.GetExposedPorts(), c.GetLabels()) != "[tool] [arg] [80] map[who:me]" {
		t.Errorf("%v", c)
	}

	again, _, err := b.build(dockerfile, args)
	if err != nil || !again.Reused || again.Layer.GetVersion() != "v1" || again.Cached != 6 {
		t.Errorf("again: %+v, %v", again, err)
	}
	b.file("tool", "#!/bin/sh\necho other $1\n", 0o755)
	changed, _, err := b.build(dockerfile, args)
	if err != nil || changed.Reused || changed.Cached != 3 {
		t.Errorf("with a changed file: %+v, %v", changed, err)
	}
	args["V"] = "2"
	if other, _, err := b.build(dockerfile, args); err != nil || other.Layer.GetVersion() != "v3" {
		t.Errorf("with another argument: %+v, %v", other, err)
	}
	if list, err := n.Client.Layers.ListLayers(t.Context(), &dsecv1.ListLayersRequest{Kind: dsecv1.LayerKind_LAYER_KIND_TOOLKIT}); err != nil || len(list.Layers) > 0 {
		t.Errorf("steps left names behind: %v, %v", list, err)
	}

	for text, want := range map[string]struct {
		kind error
		says string
	}{
		"FROM debian\nRUN echo why; exit 3":         {sandbox.ErrFailedPrecondition, "line 2: failed precondition: the command of RUN ended with 3 (exited"},
		"FROM scratch\nRUN x":                       {sandbox.ErrInvalid, "line 2: invalid argument: RUN needs something to run in"},
		"FROM scratch":                              {sandbox.ErrInvalid, "nothing was made"},
		"FROM nothing":                              {nil, "line 1: FROM nothing: "},
		"FROM debian\nCOPY ../../etc/passwd /x":     {sandbox.ErrInvalid, "there is no such file in the build's context"},
		"FROM debian\nCOPY src tool /x":             {sandbox.ErrInvalid, "it must end with a slash"},
		"FROM debian\nCOPY --chown=nobody2 tool /x": {sandbox.ErrInvalid, `/etc/passwd of the image has no "nobody2"`},
		"FROM debian\nCOPY --chmod=u+x tool /x":     {sandbox.ErrInvalid, "want octal digits"},
		"FROM debian\nCOPY src /etc/passwd":         {sandbox.ErrInvalid, "is a file, and a directory is copied there"},
		"FROM debian\nRUN test -z $(ls /sys/class/net | grep -v lo) && exit 9": {sandbox.ErrFailedPrecondition, "ended with 9"}, // no network unless it is allowed
	} {
		_, _, err := b.build(text, nil)
		if err == nil || want.kind != nil && !errors.Is(err, want.kind) || !strings.Contains(err.Error(), want.says) {
			t.Errorf("%q: %v; want %q", text, err, want.says)
		}
	}
	if _, _, err := b.build("FROM debian", map[string]string{"X": "1"}); err == nil || !strings.Contains(err.Error(), "there is no ARG X") {
		t.Errorf("an argument that nothing takes: %v", err)
	}

	// The same tree in one layer.
	s, err := n.Client.Layers.CollapseLayer(t.Context(), &dsecv1.CollapseLayerRequest{Kind: dsecv1.LayerKind_LAYER_KIND_BASE, Reference: "app@v1"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var last *dsecv1.CollapseLayerResponse
	for s.Receive() {
		last = s.Msg()
	}
	if s.Err() != nil || last.GetLayersAfter() != 1 || last.GetLayersBefore() < 5 {
		t.Fatalf("%v, %v", last, s.Err())
	}
	d, err := n.Client.Layers.DiffLayers(t.Context(), &dsecv1.DiffLayersRequest{From: "app@v1", To: "app@" + last.GetLayer().GetVersion(), Contents: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for d.Receive() {
		if c := d.Msg().GetChanges(); len(c) > 0 {
			t.Errorf("collapsed, it differs: %v", c)
		}
	}
	if err := d.Err(); err != nil {
		t.Error(err)
	}
	id = n.create(1, func(s *dsecv1.SandboxSpec) { s.Environment.Base = "app" })[0]
	n.must(id, "test ! -e /etc/motd && tool y | grep -q 'tool y' && test $(id -un) = u")
}

// A toolkit's command runs in each new sandbox as the user that it names, before anybody else's; what an environment names
// is not deleted, and what runs keeps what it began with.
func TestEnvironmentLives(t *testing.T) {
	n := startNode(t)
	ctx := t.Context()
	tool := func(text string) *dsecv1.Layer {
		t.Helper()
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		if err := errors.Join(w.WriteHeader(&tar.Header{Name: "opt/tool/version", Mode: 0o644, Size: int64(len(text))}), second(w.Write([]byte(text))), w.Close()); err != nil {
			t.Fatal(err)
		}
		resp, err := n.Client.UploadLayer(ctx, client.Upload{Kind: "toolkit", Name: "agent", OnStart: &dsecv1.OnStart{
			Argv: []string{"/bin/sh", "-c", "id -un > /tmp/started && cat /opt/tool/version >> /tmp/started"}, User: "www-data"}}, &buf, nil)
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetLayer()
	}
	tool("one\n")
	env := &dsecv1.NamedEnvironment{Name: "dev", Stack: &dsecv1.Environment{Base: base, Toolkits: []string{"agent"}}, Limits: &dsecv1.Limits{Pids: 99}, Env: map[string]string{"A": "1"}}
	if _, err := n.Client.Environments.CreateEnvironment(ctx, &dsecv1.CreateEnvironmentRequest{Environment: env}); err != nil {
		t.Fatal(err)
	}
	make := func() string {
		t.Helper()
		boxes, err := n.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Name: "dev"}}})
		if err != nil {
			t.Fatal(err)
		}
		return boxes[0].GetId()
	}
	old := make()
	if got := n.must(old, "cat /tmp/started; echo $A"); got != "www-data\none\n1\n" {
		t.Errorf("%q", got)
	}
	tool("two\n")
	fresh := make()
	if got := n.must(fresh, "cat /tmp/started"); got != "www-data\ntwo\n" {
		t.Errorf("after the upgrade: %q", got)
	}
	const kind = dsecv1.LayerKind_LAYER_KIND_TOOLKIT
	if _, err := n.Client.Layers.DeleteLayer(ctx, &dsecv1.DeleteLayerRequest{Kind: kind, Name: "agent", Version: "v2"}); err == nil || !strings.Contains(err.Error(), "in use by environment dev") {
		t.Errorf("delete what an environment means: %v", err)
	}
	gone, err := n.Client.Layers.DeleteLayer(ctx, &dsecv1.DeleteLayerRequest{Kind: kind, Name: "agent", Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	swept, err := n.Client.Layers.CollectLayers(ctx, &dsecv1.CollectLayersRequest{})
	if err != nil || len(swept.Removed) > 0 || len(swept.Kept) != 1 || swept.Kept[0].GetDigest() != gone.Deleted[0].GetDigest() || !strings.Contains(swept.Kept[0].GetWhy(), "running sandboxes") {
		t.Errorf("%v, %v", swept, err)
	}
	if got := n.must(old, "cat /opt/tool/version"); got != "one\n" {
		t.Errorf("what ran before has %q", got)
	}
}

func second[T any](_ T, err error) error { return err }
