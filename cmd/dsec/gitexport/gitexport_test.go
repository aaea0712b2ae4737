package gitexport_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/cmd/dsec/gitexport"
	"github.com/opendsec/dsec/layer/layertest"
)

// sh runs a script with an identity for git.
func sh(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@x", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@x")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

const history = `git init -q -b main . && echo one > a && mkdir d && echo x > d/run && chmod 755 d/run && ln -s a l && git add . && git commit -qm one
echo secret-answer > answer && git add . && git commit -qm two && git tag later
git checkout -q -b side HEAD~1 && echo b > b && git add . && git commit -qm side && git checkout -q main && git config user.secret x`

// A commit comes alone: what later, earlier and other commits hold is not in it, and git finds its files unchanged.
func TestOneCommit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git here")
	}
	repo := t.TempDir()
	sh(t, repo, history)
	x, err := gitexport.Make(t.Context(), repo, "HEAD~1", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	again, err := gitexport.Make(t.Context(), repo, x.Commit, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	layertest.Compare(t, layertest.Describe(t, x.Dir), layertest.Describe(t, again.Dir))
	if got := sh(t, x.Dir, "git status --porcelain; git log --format=%s | wc -l; git tag; git branch; git remote; git stash list; git reflog; cat a l; git diff HEAD --stat; git ls-files"); got != "1\n* main\none\none\na\nd/run\nl\n" {
		t.Errorf("%q", got)
	}
	all := sh(t, x.Dir, "git cat-file --batch-all-objects --batch-check | wc -l; git fsck --full --strict --unreachable")
	if !strings.HasPrefix(all, "6\n") || strings.Contains(all, "unreachable") { // a commit, two trees, two files, a link
		t.Errorf("objects: %s", all)
	}
	err = filepath.WalkDir(x.Dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		for _, word := range []string{"secret", repo} {
			if bytes.Contains(b, []byte(word)) {
				t.Errorf("%s holds %q", p, word)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if got := sh(t, repo, "git status --porcelain; git count-objects"); !strings.HasPrefix(got, "12 objects") {
		t.Errorf("the source was written to: %s", got)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git here")
	}
	repo, tmp := t.TempDir(), t.TempDir()
	sh(t, repo, history)
	for _, bad := range []struct{ repo, revision, says string }{
		{repo, "nothing", "Needed a single revision"}, {repo, "--upload-pack=x", "want a commit"}, {repo, "HEAD:a", "revision"},
		{t.TempDir(), "HEAD", "not a git repository"}, {repo + "/none", "HEAD", "no such file"}, {repo + "/a", "HEAD", "no directory"},
	} {
		x, err := gitexport.Make(t.Context(), bad.repo, bad.revision, tmp)
		if err == nil || !strings.Contains(err.Error(), bad.says) {
			t.Errorf("%s@%s: %v; want %q", bad.repo, bad.revision, err, bad.says)
			if x != nil {
				x.Close()
			}
		}
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for source, want := range map[string][2]string{"git:/x@v1": {"/x", "v1"}, "git:.": {".", "HEAD"}, "git:/a@b/c": {"/a", "b/c"}} {
		if r, v, ok := gitexport.Parse(source); !ok || r != want[0] || v != want[1] {
			t.Errorf("%s: %s, %s, %v", source, r, v, ok)
		}
	}
	if _, _, ok := gitexport.Parse("docker://x"); ok {
		t.Error("not a commit")
	}
}
