package e2b

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
)

// bin holds dsec and dsec-init, built once.
var bin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "dsec-bin-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		bin = dir
		for _, p := range []string{"dsec", "dsec-init"} {
			cmd := exec.Command("go", "build", "-o", filepath.Join(dir, p), "github.com/opendsec/dsec/cmd/"+p)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "build %s: %v\n%s", p, err, out)
				return 1
			}
		}
		return m.Run()
	}())
}

// node is a node whose environment "base" has a user called user, as clients expect it.
type node struct {
	*testkit.Node
	state string
	url   string // of the door
	key   string
}

// startNode starts a node; with the test it is stopped, and nothing of it may be left.
func startNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a node needs root")
	}
	base, err := testkit.DebianBase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	work, err := os.MkdirTemp("/var/tmp", "dse-")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{state: filepath.Join(work, "s")}
	if n.Node, err = testkit.StartNode(t.Context(), filepath.Join(bin, "dsec"), n.state, "--opt", "pool=1g", "--opt", "warm=4", "--opt", "network=off", "--opt", testkit.KernelOpt()); err != nil {
		os.RemoveAll(work)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := n.Stop()
		if err != nil {
			t.Errorf("stop the node: %v", err)
		}
		if len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		os.RemoveAll(work)
	})
	b, err := os.ReadFile(filepath.Join(n.state, "run", "up.json"))
	if err != nil {
		t.Fatal(err)
	}
	var up struct {
		E2BURL string `json:"e2bUrl"`
	}
	if err := json.Unmarshal(b, &up); err != nil || up.E2BURL == "" {
		t.Fatalf("the node serves no door: %v, %s", err, b)
	}
	n.url = up.E2BURL
	out, err := n.Run(t.Context(), "key", "create", "--e2b", "--state", n.state)
	if err != nil {
		t.Fatal(err)
	}
	n.key = strings.TrimSpace(out)
	n.upload(t, "base", "debian", openFile(t, base))
	n.upload(t, "toolkit", "e2b-user", userLayer(t, base))
	_, err = n.Client.Environments.CreateEnvironment(t.Context(), &dsecv1.CreateEnvironmentRequest{Environment: &dsecv1.NamedEnvironment{
		Name: "base", Stack: &dsecv1.Environment{Base: "debian", Toolkits: []string{"e2b-user"}}, User: "user", Workdir: "/home/user",
	}})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) upload(t *testing.T, kind, name string, tar io.Reader) {
	t.Helper()
	if _, err := n.Client.UploadLayer(t.Context(), client.Upload{Kind: kind, Name: name}, tar, nil); err != nil {
		t.Fatalf("import %s: %v", name, err)
	}
}

func openFile(t *testing.T, path string) io.Reader {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// userLayer adds a user called user to a Debian tree.
func userLayer(t *testing.T, base string) io.Reader {
	t.Helper()
	files := map[string]string{"etc/passwd": "user:x:1000:1000::/home/user:/bin/bash\n", "etc/group": "user:x:1000:\n"}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for r, done := tar.NewReader(openFile(t, base)), 0; done < len(files); {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			t.Fatalf("%s has no passwd", base)
		} else if err != nil {
			t.Fatal(err)
		}
		line, ok := files[strings.TrimPrefix(h.Name, "./")]
		if !ok {
			continue
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, line...)
		h.Size = int64(len(b))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
		done++
	}
	if err := w.WriteHeader(&tar.Header{Name: "home/user/", Typeflag: tar.TypeDir, Mode: 0o755, Uid: 1000, Gid: 1000}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

// env leads clients to the node.
func (n *node) env() []string {
	return append(os.Environ(), "E2B_API_URL="+n.url, "E2B_SANDBOX_URL="+n.url, "E2B_DOMAIN=localhost:"+n.url[strings.LastIndex(n.url, ":")+1:], "E2B_API_KEY="+n.key)
}
