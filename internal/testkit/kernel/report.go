package kernel

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// Result is what one package's tests came to.
type Result struct {
	Package               string
	Ended                 bool
	Code                  int // exit code
	Seconds               float64
	Passed, Failed, Skips []string
	Output                []string // all lines
}

// OK tells whether the package passed.
func (r *Result) OK() bool { return r.Ended && r.Code == 0 && len(r.Failed) == 0 }

// Report is what the machine has told so far.
type Report struct {
	Kernel  string // its version
	Results []*Result
	Done    bool
}

var verdict = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+)`)

// tell takes one line of the channel.
func (r *Report) tell(line string) {
	var now *Result
	if n := len(r.Results); n > 0 && !r.Results[n-1].Ended {
		now = r.Results[n-1]
	}
	m, marked := strings.CutPrefix(line, Marker)
	if !marked {
		if now == nil {
			return
		}
		now.Output = append(now.Output, line)
		if v := verdict.FindStringSubmatch(line); v != nil {
			switch v[1] {
			case "PASS":
				now.Passed = append(now.Passed, v[2])
			case "FAIL":
				now.Failed = append(now.Failed, v[2])
			case "SKIP":
				now.Skips = append(now.Skips, v[2])
			}
		}
		return
	}
	f := strings.Fields(m)
	switch {
	case len(f) == 2 && f[0] == Booted:
		r.Kernel = f[1]
	case len(f) == 2 && f[0] == Started:
		r.Results = append(r.Results, &Result{Package: f[1]})
	case len(f) == 4 && f[0] == Ended && now != nil:
		now.Ended = true
		now.Code, _ = strconv.Atoi(f[2])
		now.Seconds, _ = strconv.ParseFloat(f[3], 64)
	case len(f) == 1 && f[0] == Done:
		r.Done = true
	}
}

// Print writes the outcome: the whole output of what failed, and a line for each package.
func (r *Report) Print(w io.Writer) {
	for _, p := range r.Results {
		if !p.OK() {
			fmt.Fprintf(w, "=== output of %s\n%s\n", p.Package, strings.Join(p.Output, "\n"))
		}
	}
	for _, p := range r.Results {
		state := "ok  "
		switch {
		case !p.Ended:
			state = "CUT "
		case !p.OK():
			state = "FAIL"
		}
		fmt.Fprintf(w, "%s %s  %.0fs  %d passed, %d failed, %d skipped", state, p.Package, p.Seconds, len(p.Passed), len(p.Failed), len(p.Skips))
		for _, l := range [][]string{p.Failed, p.Skips} {
			if len(l) > 0 {
				fmt.Fprintf(w, " %q", l)
			}
		}
		fmt.Fprintln(w)
	}
}

// OK tells whether all has run and passed.
func (r *Report) OK() bool {
	for _, p := range r.Results {
		if !p.OK() {
			return false
		}
	}
	return r.Done && len(r.Results) > 0
}
