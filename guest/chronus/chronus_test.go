package chronus

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestStatements runs the statements in real shells and reads what they report.
func TestStatements(t *testing.T) {
	scripts := []struct {
		script string
		code   int // -1 = any but 0
	}{
		{"true", 0}, {"false", 1}, {"(exit 42)", 42}, {"echo '", -1}, {"if", -1}, {"}", -1}, {")", -1}, {"`", -1},
		{"cat <<'E'\n'\n", 0}, {"a=\\", 0}, {"# only a comment", 0}, {"", 0}, {"\n\n", 0}, {"f() {", -1}, {"true", 0},
		{"echo \"'$(echo \"'\")'\"", 0}, {"false |", -1}, {"! true", 1},
	}
	for _, shell := range []string{"bash", "dash"} {
		t.Run(shell, func(t *testing.T) {
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Skip(err)
			}
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			var in bytes.Buffer
			in.Write(Boot())
			for k, s := range scripts {
				in.Write(Statement(k+1, s.script, shell == "bash"))
			}
			cmd := exec.Command(path, "-s")
			cmd.Stdin = &in
			cmd.ExtraFiles = []*os.File{3: nil, 4: nil, 5: w}
			if err := cmd.Run(); err != nil {
				t.Error(err)
			}
			w.Close()
			var got bytes.Buffer
			got.ReadFrom(r)
			var s Statuses
			next := 0
			s.Feed(got.Bytes(), func(number, code int) {
				if number != next {
					t.Errorf("report %d, want %d", number, next)
				}
				if number > 0 {
					if want := scripts[number-1].code; code != want && !(want < 0 && code > 0) {
						t.Errorf("%q: %d, want %d", scripts[number-1].script, code, want)
					}
				}
				next++
			})
			if next != len(scripts)+1 {
				t.Errorf("%d reports: %q", next, got.String())
			}
		})
	}
}

func TestStatuses(t *testing.T) {
	text := "1 0\nnonsense\n2 256\n-1 3\n3 4 5\n\n" + strings.Repeat("9", 500) + " 1\n4 77\n5 1"
	for _, step := range []int{1, 2, 7, len(text)} {
		var s Statuses
		var got []string
		for p := []byte(text); len(p) > 0; {
			n := min(step, len(p))
			s.Feed(p[:n], func(number, code int) { got = append(got, fmt.Sprint(number, code)) })
			p = p[n:]
		}
		if fmt.Sprint(got) != "[1 0 4 77]" {
			t.Errorf("in steps of %d: %v", step, got)
		}
	}
}

func FuzzStatuses(f *testing.F) {
	f.Add([]byte("1 2\n"), []byte("3 4\n"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var s Statuses
		for _, p := range [][]byte{a, b} {
			s.Feed(p, func(number, code int) {
				if number < 0 || code < 0 || code > 255 {
					t.Error(number, code)
				}
			})
		}
		if len(s.line) > maxLine {
			t.Error(len(s.line))
		}
	})
}
