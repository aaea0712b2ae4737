package fncall

import (
	"strings"
	"testing"
)

// TestFirst runs one call of each language.
func TestFirst(t *testing.T) {
	needsCompiler(t)
	s := newService(t)
	for runtime, code := range map[string]string{
		"shell":  "read x; echo got $x; id -u; pwd; ls -la / /call; cat /proc/self/status | head -3; echo oops >&2; exit 3",
		"python": "import sys; print('got', input()); print('oops', file=sys.stderr); sys.exit(3)",
		"node":   "console.log('got ' + require('fs').readFileSync(0, 'utf8').trim()); console.error('oops'); process.exit(3)",
		"c":      "#include <stdio.h>\nint main(){char b[99];scanf(\"%s\",b);printf(\"got %s\\n\",b);fprintf(stderr,\"oops\\n\");return 3;}",
		"cpp":    "#include <iostream>\nint main(){std::string s;std::cin>>s;std::cout<<\"got \"<<s<<std::endl;std::cerr<<\"oops\\n\";return 3;}",
	} {
		r := script(runtime, code)
		r.Stdin = []byte("input\n")
		got := call(t, s, r)
		if runtime == "shell" {
			t.Logf("%s", got.Stdout)
		}
		if got.ExitCode != 3 || !strings.HasPrefix(string(got.Stdout), "got input\n") || string(got.Stderr) != "oops\n" {
			t.Errorf("%s: %+v\n%v\nstdout %q\nstderr %q", runtime, got, got.Failure, got.Stdout, got.Stderr)
		}
		t.Logf("%s: wall %v cpu %v memory %d, compiled %v", runtime, got.Wall, got.CPU, got.Memory, got.Compiled)
	}
}

func BenchmarkShell(b *testing.B) {
	s := newService(b)
	r := script("shell", "echo hello")
	call(b, s, r)
	for b.Loop() {
		call(b, s, r)
	}
}

func BenchmarkShellParallel(b *testing.B) {
	s := newService(b)
	r := script("shell", "echo hello")
	call(b, s, r)
	b.SetParallelism(4)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			call(b, s, r)
		}
	})
}

func BenchmarkWall(b *testing.B) {
	s := newService(b)
	r := script("shell", "echo hello")
	call(b, s, r)
	var wall, cpu int64
	for b.Loop() {
		p := call(b, s, r)
		wall += p.Wall.Microseconds()
		cpu += p.CPU.Microseconds()
	}
	b.ReportMetric(float64(wall)/float64(b.N), "wall-us")
	b.ReportMetric(float64(cpu)/float64(b.N), "cpu-us")
}
