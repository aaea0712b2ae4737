package debkernel

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// keyring is what Debian's archives are signed with.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// apt makes a directory with package lists of our own, so that the machine's are left as they are, and brings them up to
// date. env makes apt's programs use it.
func (o *Options) apt(ctx context.Context) (dir, env string, err error) {
	dir = filepath.Join(o.Cache, "apt", o.suite())
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return "", "", err
		}
	}
	if _, err := os.Stat(keyring); err != nil {
		return "", "", fmt.Errorf("%w: install debian-archive-keyring", err)
	}
	conf := filepath.Join(dir, "apt.conf")
	for path, content := range map[string]string{
		filepath.Join(dir, "sources.list"): fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring,
			cmp.Or(o.Mirror, "http://deb.debian.org/debian"), o.suite()),
		conf: fmt.Sprintf("Dir::Etc::sourcelist %q;\nDir::Etc::sourceparts \"/dev/null\";\nDir::State::lists %q;\nDir::Cache %q;\n"+
			"Acquire::Languages \"none\";\nAcquire::Retries \"3\";\nAPT::Architecture \"amd64\";\nAPT::Sandbox::User \"root\";\n",
			filepath.Join(dir, "sources.list"), filepath.Join(dir, "lists"), filepath.Join(dir, "cache")),
	} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return "", "", err
		}
	}
	env = "APT_CONFIG=" + conf
	_, err = command(ctx, dir, env, "apt-get", "-q", "update")
	return dir, env, err
}

// download gets a package's file.
func download(ctx context.Context, dir, env, name string) (string, error) {
	old, _ := filepath.Glob(filepath.Join(dir, "*.deb"))
	for _, f := range old {
		_ = os.Remove(f)
	}
	if _, err := command(ctx, dir, env, "apt-get", "-q", "download", name); err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(dir, name+"_*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("download of %s left %q, %v", name, debs, err)
	}
	return debs[0], nil
}
