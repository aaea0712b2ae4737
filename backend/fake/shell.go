package fake

import (
	"bytes"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opendsec/dsec/guest/wire"
)

// shell runs a toy language: commands of words with '...' and "..." quotes and $NAME, separated by ';', '&&'
// or newlines, each with an optional >&2, >FILE or >>FILE, and these programs.
type shell struct {
	c     *process
	state *shellState
	env   map[string]string
	out   wire.Stream
	file  *bytes.Buffer // where > goes
	exits bool
}

// known are the programs; each gets its arguments and returns its exit code.
var known map[string]func(*shell, []string) int32

func init() { // not a literal: sh refers back to it
	known = map[string]func(*shell, []string) int32{
		"true":   func(*shell, []string) int32 { return 0 },
		"false":  func(*shell, []string) int32 { return 1 },
		"echo":   func(s *shell, a []string) int32 { return s.print(strings.Join(a, " ") + "\n") },
		"printf": func(s *shell, a []string) int32 { return s.print(unescape(strings.Join(a, " "))) },
		"pwd":    func(s *shell, _ []string) int32 { return s.print(s.state.cwd + "\n") },
		"whoami": func(s *shell, _ []string) int32 { return s.print(s.state.user + "\n") },
		"cat":    (*shell).cat,
		"cd":     (*shell).cd,
		"env":    (*shell).printEnv,
		"exit":   (*shell).exit,
		"export": (*shell).export,
		"sleep":  (*shell).sleep,
		"yes":    (*shell).yes,
		"count":  (*shell).count,
		"kill":   (*shell).killSelf,
		"ignore": (*shell).ignore,
		"sh":     (*shell).sub,
		"fill":   (*shell).fill,
	}
}

func knownProgram(name string) bool { return known[path.Base(name)] != nil }

// run runs argv or a script; exits = the shell itself was left by exit.
func (s *shell) run(argv []string, script string) (code int32, exits bool) {
	s.out = wire.Stdout
	if len(argv) > 0 {
		code = known[path.Base(argv[0])](s, argv[1:])
		return code, s.exits
	}
	return s.script(script), s.exits
}

func (s *shell) script(text string) (code int32) {
	for _, cmd := range split(text) {
		if cmd.and && code != 0 {
			continue
		}
		if !s.c.m.awaitThaw() || s.c.ctx.Err() != nil {
			return 137
		}
		code = s.command(cmd.words)
		if s.exits || s.c.ctx.Err() != nil {
			return code
		}
	}
	return code
}

func (s *shell) command(words []string) int32 {
	words = s.expand(words)
	s.out, s.file = wire.Stdout, nil
	name, appendTo := "", false
	words = slices.DeleteFunc(words, func(w string) bool {
		switch {
		case w == ">&2":
			s.out = wire.Stderr
		case strings.HasPrefix(w, ">>"):
			name, appendTo = w[2:], true
		case strings.HasPrefix(w, ">"):
			name = w[1:]
		default:
			return false
		}
		return true
	})
	if len(words) == 0 {
		return 0
	}
	run := known[words[0]]
	if run == nil {
		s.out = wire.Stderr
		s.print("sh: " + words[0] + ": not found\n")
		return 127
	}
	if name != "" {
		s.file = &bytes.Buffer{}
	}
	code := run(s, words[1:])
	if name != "" {
		if !s.c.m.files.put(s.abs(name), s.file.Bytes(), 0o644, appendTo) {
			s.out, s.file = wire.Stderr, nil
			s.print("sh: cannot create " + name + "\n")
			return 2
		}
	}
	return code
}

func (s *shell) abs(name string) string {
	if !strings.HasPrefix(name, "/") {
		name = s.state.cwd + "/" + name
	}
	return path.Clean(name)
}

func (s *shell) print(text string) int32 {
	if s.file != nil {
		s.file.WriteString(text)
		return 0
	}
	if !s.c.write(s.out, []byte(text)) {
		return 141
	}
	return 0
}

func (s *shell) cat(args []string) int32 {
	if len(args) == 0 {
		if s.c.stdin == nil {
			return 0
		}
		b := make([]byte, 32<<10)
		for {
			n, err := s.c.stdin.Read(b)
			if n > 0 && s.print(string(b[:n])) != 0 {
				return 141
			}
			if err == io.EOF || s.c.ctx.Err() != nil {
				return 0
			}
		}
	}
	for _, a := range args {
		data, ok := s.c.m.files.get(s.abs(a))
		if !ok {
			s.out = wire.Stderr
			s.print("cat: " + a + ": No such file or directory\n")
			return 1
		}
		s.print(string(data))
	}
	return 0
}

func (s *shell) cd(args []string) int32 {
	to := "/root"
	if len(args) > 0 {
		to = s.abs(args[0])
	}
	if n := s.c.m.files.find(to); n == nil || !n.dir {
		s.out = wire.Stderr
		s.print("cd: " + to + ": No such file or directory\n")
		return 1
	}
	s.state.cwd = to
	return 0
}

func (s *shell) printEnv([]string) int32 {
	var list []string
	for k, v := range s.env {
		list = append(list, k+"="+v+"\n")
	}
	slices.Sort(list)
	return s.print(strings.Join(list, ""))
}

func (s *shell) export(args []string) int32 {
	addEnv(s.env, args)
	return 0
}

func (s *shell) exit(args []string) int32 {
	s.exits = true
	if len(args) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(args[0])
	return int32(n & 255)
}

func (s *shell) wait(d time.Duration) bool {
	select {
	case <-time.After(d):
		return s.c.m.awaitThaw()
	case <-s.c.ctx.Done():
		return false
	}
}

func (s *shell) sleep(args []string) int32 {
	secs := 0.0
	if len(args) > 0 {
		secs, _ = strconv.ParseFloat(args[0], 64)
	}
	if !s.wait(time.Duration(secs * float64(time.Second))) {
		return 137
	}
	return 0
}

func (s *shell) yes([]string) int32 {
	for s.print(strings.Repeat("y\n", 4096)) == 0 {
	}
	return 141
}

// count N [SECONDS] prints the numbers from 1 to N, one a line, with a pause after each.
func (s *shell) count(args []string) int32 {
	n, pause := 0, 0.0
	if len(args) > 0 {
		n, _ = strconv.Atoi(args[0])
	}
	if len(args) > 1 {
		pause, _ = strconv.ParseFloat(args[1], 64)
	}
	var lines strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&lines, i)
		if pause == 0 && i < n && lines.Len() < 4096 {
			continue // as a pipe would gather them
		}
		if s.print(lines.String()) != 0 || pause > 0 && !s.wait(time.Duration(pause*float64(time.Second))) {
			return 137
		}
		lines.Reset()
	}
	return 0
}

// kill -N $$ ends the shell by signal N.
func (s *shell) killSelf(args []string) int32 {
	sig := 15
	if len(args) > 0 {
		sig, _ = strconv.Atoi(strings.TrimPrefix(args[0], "-"))
	}
	s.c.kill(int32(sig), false)
	return 0
}

// ignore N ignores signal N.
func (s *shell) ignore(args []string) int32 {
	for _, a := range args {
		n, _ := strconv.Atoi(a)
		s.c.mu.Lock()
		s.c.ignores[int32(n)] = true
		s.c.mu.Unlock()
	}
	return 0
}

// fill uses up the disk and fails.
func (s *shell) fill([]string) int32 {
	s.c.m.files.mu.Lock()
	s.c.m.files.extra = s.c.m.spec.Limits.DiskBytes
	s.c.m.files.mu.Unlock()
	return 1
}

// sh -c SCRIPT
func (s *shell) sub(args []string) int32 {
	if len(args) < 2 || args[0] != "-c" {
		return 2
	}
	code := s.script(args[1])
	s.exits = false
	return code
}
