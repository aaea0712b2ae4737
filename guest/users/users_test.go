package users

import (
	"strings"
	"testing"
)

func TestNumbers(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "4294967294": 4294967294, "4294967295": -1, "": -1, "-1": -1, "+1": -1, "1x": -1, "99999999999": -1, "007": 7,
	} {
		n, ok := number(text)
		if ok != (want >= 0) || ok && int64(n) != want {
			t.Errorf("%q: %d %v", text, n, ok)
		}
	}
}

func TestLines(t *testing.T) {
	text := "a:b:c:d\n\nshort:x\n" + strings.Repeat(":", 30) + "\nlast:1:2:3"
	var got []string
	lines(text, 4, func(f []string) bool {
		got = append(got, f[0])
		return true
	})
	if strings.Join(got, ",") != "a,,last" {
		t.Errorf("%q", got)
	}
	if !listed("a,bob,c", "bob") || listed("a,bobby", "bob") || listed("", "bob") {
		t.Error("listed")
	}
}

func TestSpecs(t *testing.T) {
	for _, bad := range []string{":", ":1", "1:", "no-such-user-here", "0:no-such-group-here", "-1", "4294967295"} {
		if u, err := Lookup(bad); err == nil {
			t.Errorf("%q: %+v", bad, u)
		}
	}
	for _, root := range []string{"", "0", "root"} {
		if u, err := Lookup(root); err != nil || u.UID != 0 || u.Name != "root" {
			t.Errorf("%q: %+v %v", root, u, err)
		}
	}
	if u, err := Lookup("70000:70001"); err != nil || u.UID != 70000 || u.GID != 70001 || u.Home != "/" {
		t.Errorf("%+v %v", u, err)
	}
}
