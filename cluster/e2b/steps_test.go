package e2b

import (
	"strings"
	"testing"
)

// TestBlanks: an argument that would swallow the line after it is refused; one that stands between quotes is as it is.
func TestBlanks(t *testing.T) {
	for _, s := range []buildStep{
		{Type: "USER", Args: []string{" "}}, {Type: "USER", Args: []string{"user "}}, {Type: "WORKDIR", Args: []string{"/tmp/a\t"}},
		{Type: "RUN", Args: []string{"true", "user "}}, {Type: "COPY", Args: []string{"a", "b", "user ", ""}, FilesHash: strings.Repeat("a", 64)},
	} {
		in := buildStart{FromTemplate: "base", Steps: []buildStep{s, {Type: "RUN", Args: []string{"id"}}}}
		if text, _, err := in.dockerfile("user", ""); err == nil || !strings.Contains(err.Error(), "step 1") {
			t.Errorf("%v: %v\n%s", s, err, text)
		}
	}
	for _, s := range []buildStep{
		{Type: "ENV", Args: []string{"A", " b "}}, {Type: "RUN", Args: []string{" id "}}, {Type: "COPY", Args: []string{"a ", "b "}, FilesHash: strings.Repeat("a", 64)},
	} {
		in := buildStart{FromTemplate: "base", Steps: []buildStep{s}}
		if _, _, err := in.dockerfile("user", ""); err != nil {
			t.Errorf("%v: %v", s, err)
		}
	}
}
