package main

import (
	"archive/tar"
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
)

//go:embed toolkit/agent.py
var agent []byte

// What the demo runs on. The names are what `dsec layer ls` shows.
const (
	baseName      = "demo-debian"
	workspaceName = "demo-toolz"
	toolkitName   = "demo-agent"
	project       = "toolz==1.0.0"
	projectDir    = "/workspace/toolz"
	agentDir      = "/opt/agent"
)

// debianBase returns the tar of a Debian tree, made once.
func debianBase(ctx context.Context) (string, error) {
	done := step("base from Debian's packages")
	path, err := testkit.DebianBase(ctx)
	if err != nil {
		return "", err
	}
	st, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	done(fmt.Sprintf("%d MiB", st.Size()>>20))
	return path, nil
}

// importAll brings the three layers in; what is there already is reused.
func importAll(ctx context.Context, o options, c *client.Client, tarPath string) error {
	if err := importBase(ctx, o, c, tarPath); err != nil {
		return err
	}
	done := step("workspace: %s with its tests", project)
	dir, err := projectSources(ctx, o)
	if err != nil {
		return err
	}
	resp, err := upload(ctx, c, client.Upload{Kind: "workspace", Name: workspaceName, Prefix: projectDir, Source: project}, os.DirFS(dir))
	if err != nil {
		return fmt.Errorf("import workspace: %w", err)
	}
	done(outcome(resp))

	done = step("toolkit: the scripted agent")
	tools := filepath.Join(o.state, "toolkit")
	if err := os.MkdirAll(tools, 0o755); err != nil {
		return err
	}
	if err := writeChanged(filepath.Join(tools, "agent.py"), agent); err != nil {
		return err
	}
	if resp, err = upload(ctx, c, client.Upload{Kind: "toolkit", Name: toolkitName, Prefix: agentDir}, os.DirFS(tools)); err != nil {
		return fmt.Errorf("import toolkit: %w", err)
	}
	done(outcome(resp))
	return nil
}

// writeChanged writes a file unless it has that content: its time is a part of the layer.
func writeChanged(path string, content []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	return os.WriteFile(path, content, 0o755)
}

func outcome(r *dsecv1.ImportLayerResponse) string {
	l := r.GetLayer()
	s := fmt.Sprintf("%s@%s, %d files, %.1f MiB", l.GetName(), l.GetVersion(), l.GetFiles(), float64(l.GetDataBytes()+l.GetMetaBytes())/(1<<20))
	if r.GetReused() {
		s += ", reused"
	}
	return s
}

// projectSources returns a directory with the project's sources: from PyPI, or from Debian's package of it
// where PyPI cannot be reached.
func projectSources(ctx context.Context, o options) (string, error) {
	dir := filepath.Join(o.cache, "demo-"+strings.ReplaceAll(project, "==", "-"))
	if _, err := os.Stat(filepath.Join(dir, "toolz", "tests")); err == nil {
		return dir, nil
	}
	tmp, err := os.MkdirTemp(o.cache, "demo-project-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	// One shell line each: fetch, unpack, and leave the sources in ./src.
	fromPyPI := `python3 -m venv v && v/bin/pip download -q --no-deps --no-binary :all: --no-build-isolation ` + project + ` -d . || python3 -m pip download -q --no-deps --no-binary :all: ` + project + ` -d . ; mkdir src && tar xzf toolz-*.tar.gz --strip-components=1 -C src`
	fromDebian := `rm -rf src; apt-get download -q python3-toolz && mkdir x src && dpkg -x python3-toolz_*.deb x && cp -r x/usr/lib/python3/dist-packages/toolz src/`
	var errs []string
	for _, sh := range []string{fromPyPI, fromDebian} {
		cmd := exec.CommandContext(ctx, "sh", "-c", sh)
		cmd.Dir = tmp
		out, err := cmd.CombinedOutput()
		if _, serr := os.Stat(filepath.Join(tmp, "src", "toolz", "tests")); err == nil && serr == nil {
			return dir, os.Rename(filepath.Join(tmp, "src"), dir)
		}
		errs = append(errs, strings.TrimSpace(string(out)))
	}
	return "", fmt.Errorf("sources of %s: neither from PyPI nor from Debian:\n%s", project, strings.Join(errs, "\n"))
}

// upload streams a tree up as a tar.
func upload(ctx context.Context, c *client.Client, up client.Upload, tree fs.FS) (*dsecv1.ImportLayerResponse, error) {
	r, w := io.Pipe()
	go func() {
		tw := tar.NewWriter(w)
		err := tw.AddFS(tree)
		if cerr := tw.Close(); err == nil {
			err = cerr
		}
		w.CloseWithError(err)
	}()
	defer r.Close()
	return c.UploadLayer(ctx, up, r, nil)
}
