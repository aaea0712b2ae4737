package network

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/networktest"
)

// widePackages are what the base of TestClients holds.
var widePackages = []string{"ca-certificates", "curl", "dnsutils", "git", "iproute2", "procps", "python3", "python3-pip"}

func wideBase() (string, error) {
	var errs bytes.Buffer
	cmd := exec.CommandContext(context.Background(), filepath.Join("..", "..", "hack", "debian-base.sh"), widePackages...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("hack/debian-base.sh: %w\n%s", err, &errs)
	}
	return strings.TrimSpace(string(out)), nil
}

// tool runs a program of the machine that the tests run on.
func tool(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// repository makes a bare git repository that a web server of files can serve.
func repository(t *testing.T, dir string) {
	t.Helper()
	work := t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "README"), []byte("cloned\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	git := []string{"git", "-c", "user.name=t", "-c", "user.email=t@example.org"}
	tool(t, work, "git", "init", "-q", "-b", "main")
	tool(t, work, "git", "add", "README")
	tool(t, work, append(git, "commit", "-q", "-m", "first")...)
	tool(t, work, "git", "clone", "-q", "--bare", work, dir)
	tool(t, dir, "git", "update-server-info")
}

// archive makes a Debian archive of one package, and returns its line for sources.list.
func archive(t *testing.T, dir string) {
	t.Helper()
	tree := t.TempDir()
	write := func(path, text string, mode os.FileMode) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	control := "Package: dsec-hello\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@example.org>\nDescription: a greeting\n"
	write(filepath.Join(tree, "DEBIAN/control"), control, 0o644)
	write(filepath.Join(tree, "usr/bin/dsec-hello"), "#!/bin/sh\necho installed\n", 0o755)
	deb := filepath.Join(dir, "dsec-hello_1.0_all.deb")
	tool(t, dir, "dpkg-deb", "--root-owner-group", "-Zgzip", "-b", tree, deb)
	b, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(dir, "Packages"), fmt.Sprintf("%sFilename: ./dsec-hello_1.0_all.deb\nSize: %d\nSHA256: %x\n\n", control, len(b), sha256.Sum256(b)), 0o644)
}

// wheel makes a package of Python as an index serves it.
func wheel(t *testing.T, name, code string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	info := name + "-1.0.dist-info/"
	for _, f := range [][2]string{
		{name + ".py", code},
		{info + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", name + ".py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n"},
	} {
		w, err := z.Create(f[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// testClients: git and apt, as they are in every Debian.
func testClients(t *testing.T, w *world, _ *sites) {
	dir := t.TempDir()
	repository(t, filepath.Join(dir, "project.git"))
	archive(t, dir)
	files := networktest.Handler(http.FileServer(http.Dir(dir)))
	w.inet.Site("github.com", files)
	w.inet.Site("deb.debian.org", files)
	mirror := w.inet.Site("gitlab.com", files)
	b := w.box(t, "github", "debian")
	defer b.stop()
	clone := "git -c http.sslCAInfo=/etc/ca.pem clone -q https://%s/project.git /tmp/%[1]s 2>&1 && cat /tmp/%[1]s/README || true"
	if got := b.sh(fmt.Sprintf(clone, "github.com")); got != "cloned" {
		t.Errorf("git clone: %q", got)
	}
	if got := b.sh(fmt.Sprintf(clone, "gitlab.com")); !strings.Contains(got, "Could not resolve host") {
		t.Errorf("git clone from a denied host: %q", got)
	}
	if len(mirror.Requests()) != 0 {
		t.Error("the denied host was reached")
	}
	apt := "rm -rf /etc/apt/sources.list*; echo 'deb [trusted=yes] http://%s/ ./' >/etc/apt/sources.list; " +
		"apt-get -qq -o Acquire::Retries=0 update 2>&1; apt-get -qq -y -o Acquire::Retries=0 install dsec-hello 2>&1 >/dev/null; dsec-hello; apt-get -qq -y remove dsec-hello >/dev/null 2>&1; true"
	if got := b.sh(fmt.Sprintf(apt, "deb.debian.org")); !strings.HasSuffix(got, "installed") {
		t.Errorf("apt-get install: %q", got)
	}
	if got := b.sh(fmt.Sprintf(apt, "gitlab.com")); strings.Contains(got, "installed") || !strings.Contains(got, "Could not resolve") {
		t.Errorf("apt-get install from a denied host: %q", got)
	}
}

// TestClients: pip against an index with wheels, curl, and dig.
func TestClients(t *testing.T) {
	if !slow {
		t.Skip("a base with pip takes minutes to make, once: set DSEC_TEST_SLOW=1, as make test-all does")
	}
	w := start(t, datapath.EBPF)
	tarball, err := wideBase()
	if err != nil {
		t.Fatal(err)
	}
	w.layer("base", "wide", tarball)
	content := wheel(t, "six_of_them", "def count(): return 6\n")
	w.inet.Site("files.pythonhosted.org", networktest.Handler(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(content) })))
	w.inet.Site("pypi.org", networktest.Handler(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/simple/six-of-them") {
			http.NotFound(rw, r)
			return
		}
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(rw, "<!DOCTYPE html><html><body><a href=\"https://files.pythonhosted.org/packages/six_of_them-1.0-py3-none-any.whl#sha256=%x\">six_of_them-1.0-py3-none-any.whl</a></body></html>", sha256.Sum256(content))
	})))
	b := w.boxes(t, 1, "wide", "pypi", "!npm")[0]
	defer b.stop()
	pip := "pip --disable-pip-version-check --cert /etc/ca.pem --retries 0 -q install --break-system-packages --no-cache-dir %s 2>&1; "
	if got := b.sh(fmt.Sprintf(pip, "six-of-them") + "python3 -c 'import six_of_them; print(six_of_them.count())'"); !strings.HasSuffix(got, "6") {
		t.Errorf("pip install: %q", got)
	}
	if got := b.sh(fmt.Sprintf(pip, "-i https://registry.npmjs.org/simple seven") + "true"); !strings.Contains(got, "No matching distribution found for seven") {
		t.Errorf("pip install from a denied index: %q", got)
	}
	if got := b.sh("curl -sS --cacert /etc/ca.pem -o /dev/null -w '%{http_code}' https://pypi.org/simple/six-of-them/"); got != "200" {
		t.Errorf("curl: %q", got)
	}
	if got := b.sh("curl -sS https://registry.npmjs.org/ 2>&1 || echo $?"); !strings.HasSuffix(got, "\n6") {
		t.Errorf("curl of a denied name: %q", got)
	}
	for query, want := range map[string]string{
		"pypi.org A": "NOERROR", "pypi.org AAAA": "NOERROR", "+tcp pypi.org": "NOERROR",
		"registry.npmjs.org": "NXDOMAIN", "pypi.org TXT": "NOERROR", "@" + networktest.ResolverV4.String() + " pypi.org": "",
	} {
		got := b.sh("dig +tries=1 +time=2 " + query + " 2>&1 || true")
		if want == "" && strings.Contains(got, "status:") || want != "" && !strings.Contains(got, "status: "+want) {
			t.Errorf("dig %s: %s", query, got)
		}
	}
}
