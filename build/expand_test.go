package build

import (
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/shell"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// TestWordsAreBounded: variables that grow from line to line, replacements, and many words end the build before the memory.
func TestWordsAreBounded(t *testing.T) {
	fresh := func(value string) *builder {
		return &builder{lex: shell.NewLex('\\'), config: &dsecv1.ImageConfig{Env: []string{"A=" + value, "B=" + value}}}
	}
	b := fresh("xxxxxxxxxxxxxxxx")
	for line := 0; ; line++ {
		v, err := b.expander(nil)("$A$A")
		if err != nil {
			if !strings.Contains(err.Error(), "want at most 131072") {
				t.Error(err)
			}
			break
		}
		if line > 12 {
			t.Fatalf("a variable of %d bytes", len(v))
		}
		b.config.Env[0] = "A=" + v
	}
	long := strings.Repeat("x", 100<<10)
	for _, word := range []string{strings.Repeat("$A", 200), "${A//x/$B}", "${A//x/${B//x/$A}}"} {
		if _, err := fresh(long).expander(nil)(word); err == nil || !strings.Contains(err.Error(), "may be longer than") {
			t.Errorf("%.20s: %v", word, err)
		}
	}
	if _, err := fresh("").expander(map[string]string{"L": long})("$L$L"); err == nil {
		t.Error("an ARG is not counted")
	}
	b = fresh(long)
	var err error
	for n := 0; n < 100 && err == nil; n++ {
		_, err = b.expander(nil)("$A")
	}
	if err == nil || !strings.Contains(err.Error(), "together") {
		t.Errorf("many words: %v", err)
	}
	// What builds do.
	b = fresh("/usr/local/bin:/usr/bin:/bin")
	for word, want := range map[string]string{"$A": "/usr/local/bin:/usr/bin:/bin", "/opt/bin:${A}": "/opt/bin:/usr/local/bin:/usr/bin:/bin", "${C:-d}/e": "d/e", "${A//bin/b}": "/usr/local/b:/usr/b:/b"} {
		if got, err := b.expander(nil)(word); err != nil || got != want {
			t.Errorf("%s: %q, %v", word, got, err)
		}
	}
}
