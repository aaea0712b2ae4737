package fncall

import "testing"

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		got, want              string
		exact, trimmed, tokens bool
	}{
		{"1 2\n", "1 2\n", true, true, true},
		{"1 2", "1 2\n", false, true, true},
		{"1 2  \n\n\n", "1 2\n", false, true, true},
		{"1  2\n", "1 2\n", false, false, true},
		{"1\n2\n", "1 2\n", false, false, true},
		{"12\n", "1 2\n", false, false, false},
		{"", "\n", false, true, true},
		{"\n1\n", "1\n", false, false, true},
		{"1\r\n2\r\n", "1\n2\n", false, true, true},
		{"1\n2\n3", "1\n2\n", false, false, false},
		{"", "1", false, false, false},
	} {
		for mode, want := range map[Comparison]bool{Exact: c.exact, Trimmed: c.trimmed, Tokens: c.tokens} {
			if got := mode.Equal([]byte(c.got), []byte(c.want)); got != want {
				t.Errorf("%v of %q and %q: %v", mode, c.got, c.want, got)
			}
		}
	}
}
