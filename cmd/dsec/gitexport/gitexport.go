// Package gitexport makes a directory of one commit of a local git repository: its files, and a repository of that one
// commit, without parents, tags, remotes or anything that the commit does not hold. It uses the git of this machine.
package gitexport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/opendsec/dsec/internal/linux"
)

// Export is a commit in a directory of its own.
type Export struct {
	Dir    string // its files, and .git
	Commit string // the commit that was asked for; the one in Dir has another name
	// Submodules are paths of which the commit names only a commit of another repository: they are empty.
	Submodules []string
}

// Close removes the directory.
func (e *Export) Close() error { return os.RemoveAll(e.Dir) }

// prefix of sources that name a commit.
const prefix = "git:"

// Parse reads git:PATH[@REVISION]; ok = it is one. Without a revision it means HEAD.
func Parse(source string) (repo, revision string, ok bool) {
	rest, ok := strings.CutPrefix(source, prefix)
	if !ok {
		return "", "", false
	}
	repo, revision = rest, "HEAD"
	if i := strings.LastIndexByte(rest, '@'); i >= 0 && !strings.Contains(rest[i:], "/") {
		repo, revision = rest[:i], rest[i+1:]
	} else if i := strings.Index(rest, "@"); i >= 0 { // origin/main, HEAD@{upstream}
		if _, err := os.Stat(rest); err != nil {
			repo, revision = rest[:i], rest[i+1:]
		}
	}
	return repo, revision, true
}

// Make exports a commit below dir (empty = the system's place for temporary files). Errors say what git said.
func Make(ctx context.Context, repo, revision, dir string) (*Export, error) {
	if revision == "" || strings.HasPrefix(revision, "-") {
		return nil, fmt.Errorf("git revision %q: want a commit, branch or tag", revision)
	}
	if st, err := os.Stat(repo); err != nil {
		return nil, fmt.Errorf("git repository: %w", err)
	} else if !st.IsDir() {
		return nil, fmt.Errorf("git repository %s: it is no directory", repo)
	}
	if _, err := exec.LookPath("git"); err != nil {
		return nil, errors.New("git is not installed here: install it, or import the files of a directory")
	}
	tmp, err := os.MkdirTemp(dir, "dsec-git-")
	if err != nil {
		return nil, err
	}
	x := &Export{Dir: filepath.Join(tmp, "tree")}
	keep := false
	defer func() {
		if !keep {
			os.RemoveAll(tmp)
		}
	}()
	if err := x.fill(ctx, repo, revision); err != nil {
		return nil, fmt.Errorf("git %s@%s: %w", repo, revision, err)
	}
	// One directory for the caller to know and to remove.
	final := tmp + ".tree"
	if err := os.Rename(x.Dir, final); err != nil {
		return nil, err
	}
	x.Dir = final
	os.RemoveAll(tmp)
	keep = true
	return x, nil
}

// fill makes the repository and the files. Everything about it follows from the commit: the same commit gives the same bytes.
func (x *Export) fill(ctx context.Context, repo, revision string) error {
	source := func(args ...string) (string, error) { return git(ctx, repo, nil, args...) }
	var err error
	if x.Commit, err = source("rev-parse", "--verify", "--end-of-options", revision+"^{commit}"); err != nil {
		return fmt.Errorf("no commit, branch or tag of this name is there: %w", err)
	}
	tree, err := source("rev-parse", x.Commit+"^{tree}")
	if err != nil {
		return err
	}
	format, err := source("rev-parse", "--show-object-format")
	if err != nil {
		return err
	}
	common, err := source("rev-parse", "--path-format=absolute", "--git-path", "objects")
	if err != nil {
		return err
	}
	when, err := source("show", "-s", "--no-show-signature", "--format=%ct", x.Commit)
	if err != nil {
		return err
	}
	if _, err := git(ctx, "", nil, "init", "--quiet", "--template=", "--object-format="+format, "--initial-branch=main", x.Dir); err != nil {
		return err
	}
	own := func(args ...string) (string, error) {
		date := when + " +0000"
		return git(ctx, x.Dir, []string{
			"GIT_AUTHOR_NAME=dsec", "GIT_AUTHOR_EMAIL=dsec@localhost", "GIT_COMMITTER_NAME=dsec", "GIT_COMMITTER_EMAIL=dsec@localhost",
			"GIT_AUTHOR_DATE=" + date, "GIT_COMMITTER_DATE=" + date,
		}, append([]string{"-c", "pack.threads=1", "-c", "core.autocrlf=false", "-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0"}, args...)...)
	}
	alternates := filepath.Join(x.Dir, ".git", "objects", "info", "alternates")
	if err := os.MkdirAll(filepath.Dir(alternates), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(alternates, []byte(common+"\n"), 0o644); err != nil {
		return err
	}
	commit, err := own("commit-tree", tree, "-m", "import of "+x.Commit)
	if err != nil {
		return err
	}
	if _, err := own("update-ref", "refs/heads/main", commit); err != nil {
		return err
	}
	// A pack of what the one commit reaches; then nothing of the source is needed, or reachable, any more.
	if _, err := own("repack", "-a", "-d", "-q", "--no-write-bitmap-index", "--window=0"); err != nil {
		return err
	}
	if err := os.Remove(alternates); err != nil {
		return err
	}
	if _, err := own("checkout", "--quiet", "--force", "main"); err != nil {
		return err
	}
	names, err := own("ls-tree", "-r", "-z", "--format=%(objecttype) %(path)", commit)
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(names, "\x00") {
		if path, ok := strings.CutPrefix(name, "commit "); ok {
			x.Submodules = append(x.Submodules, path)
		}
	}
	return x.settle(ctx, own, when)
}

// settle takes out what depends on when and where the files were written.
func (x *Export) settle(ctx context.Context, own func(...string) (string, error), when string) error {
	dot := filepath.Join(x.Dir, ".git")
	// An index that knows the content and nothing of this machine's files: git looks at them once, and finds them unchanged.
	if err := os.Remove(filepath.Join(dot, "index")); err != nil {
		return err
	}
	if _, err := own("read-tree", "HEAD"); err != nil {
		return err
	}
	for _, name := range []string{"logs", "hooks", "info/refs", "objects/info/packs", "ORIG_HEAD", "COMMIT_EDITMSG"} {
		if err := os.RemoveAll(filepath.Join(dot, filepath.FromSlash(name))); err != nil {
			return err
		}
	}
	seconds, err := time.ParseDuration(when + "s")
	if err != nil {
		return fmt.Errorf("time of the commit %q: %w", when, err)
	}
	at := time.Unix(0, 0).Add(seconds)
	return filepath.WalkDir(x.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if d.Type()&os.ModeSymlink == 0 { // whatever the umask here is
			info, err := d.Info()
			if err != nil {
				return err
			}
			mode := os.FileMode(0o644)
			if info.Mode()&0o100 != 0 {
				mode = 0o755
			}
			if err := os.Chmod(path, mode); err != nil {
				return err
			}
		}
		return linux.SetTimes(path, at)
	})
}

// git runs a command without this user's and this machine's configuration, and returns what it says, trimmed.
func git(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	if dir != "" {
		args = append([]string{"-C", dir}, args...)
	}
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.WaitDelay = 10 * time.Second
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "GIT_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0", "GIT_NO_LAZY_FETCH=1", "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C")
	cmd.Env = append(cmd.Env, env...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		text := strings.TrimSpace(stderr.String())
		if text == "" {
			text = err.Error()
		}
		return "", errors.New(strings.TrimPrefix(text, "fatal: "))
	}
	return strings.TrimRight(out.String(), "\n"), nil
}
