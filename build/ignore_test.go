package build

import "testing"

func TestIgnore(t *testing.T) {
	g := parseIgnore("# comment\n.git\n*/temp*\n**/*.pyc\ndocs/**\n!docs/keep.md\n/root.txt\n")
	for name, want := range map[string]bool{
		".git": true, ".git/config": true, "a/.git": false, "a/temp1": true, "temp1": false, "a/b/temp1": false, "x.pyc": true, "a/b/x.pyc": true,
		"docs/a": true, "docs/keep.md": false, "root.txt": true, "a/root.txt": false, "main.go": false,
	} {
		if got := g.excludes(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
