package main

import (
	"strings"
	"testing"
)

func TestParseCollect(t *testing.T) {
	got, err := parseCollect([]string{"a/x", "b/x=y", "z"})
	if err != nil || len(got) != 3 || got["a/x"] != "x" || got["b/x"] != "y" || got["z"] != "z" {
		t.Errorf("%v, %v", got, err)
	}
	for spec, want := range map[string]string{
		"a/x b/x":   "would be written to x as well",
		"a b=./a":   "would be written to ./a as well",
		"x=a x=b":   "asked for twice",
		"":          "want file or file=name",
		"a=":        "want file or file=name",
		"a/..":      "want file or file=name",
		"=out":      "want file or file=name",
		"a=.. b=.":  "want file or file=name",
		"a=d/x b=x": "",
	} {
		_, err := parseCollect(strings.Split(spec, " "))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", spec, err, want)
		}
	}
}
