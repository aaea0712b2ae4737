// Package chronus is the language that dsec-init speaks with the shell of a stateful session. The shell (bash, or
// any POSIX shell) reads statements from its stdin, a pipe that only dsec-init writes, and reports the end of each
// on a pipe of its own, apart from the output:
//
//	<number> <code>\n
//
// A statement runs the user's script with eval, as one word quoted for the shell: whatever is in it (an open
// quote, a heredoc without its end, a syntax error) ends with it. What it starts does not inherit the shell's
// stdin nor its status pipe.
//
// The shell and all below it belong to the sandbox; what is read from the status pipe is hostile input.
package chronus

import (
	"bytes"
	"strconv"
)

// BootFD is the descriptor at which the shell finds its status pipe. A shell that can (bash) moves it out of the
// way of scripts, which like to use the low numbers.
const (
	BootFD = 8
	bashFD = 198
)

// Boot is the first statement. It is answered by status number 0: code 1 tells that the status pipe was moved.
func Boot() []byte {
	b := strconv.Itoa(bashFD)
	return []byte(`if [ -n "$BASH_VERSION" ]; then exec ` + b + `>&8 8>&-; echo 0 1 >&` + b + `; else echo 0 0 >&8; fi` + "\n")
}

// Statement returns what makes the shell run a script and report its code under a number. The script has no NUL.
func Statement(number int, script string, moved bool) []byte {
	fd := strconv.Itoa(BootFD)
	if moved {
		fd = strconv.Itoa(bashFD)
	}
	b := make([]byte, 0, len(script)+len(script)/8+96)
	b = append(b, "command eval "...)
	b = quote(b, script)
	b = append(b, " </dev/null "...)
	b = append(b, fd...)
	// On the same line, so that it is parsed before: a syntax error in eval leaves bash's parser in a state in
	// which the next line's brace is no longer one. After "set -e" a failure still ends the shell.
	b = append(b, ">&-; { echo "...)
	b = strconv.AppendInt(b, int64(number), 10)
	// Its own trace ("set -x") stays out of the user's sight.
	b = append(b, " $? >&"...)
	b = append(b, fd...)
	return append(b, "; } 2>/dev/null\n"...)
}

// quote appends s as one word.
func quote(b []byte, s string) []byte {
	b = append(b, '\'')
	for i := range len(s) {
		if s[i] == '\'' {
			b = append(b, `'\''`...)
		} else {
			b = append(b, s[i])
		}
	}
	return append(b, '\'')
}

// Statuses takes reports off the status pipe.
type Statuses struct {
	line []byte
	skip bool // the rest of a line that is too long
}

const maxLine = 64

// Feed calls f for every well-formed report that ends in p. Anything else is skipped.
func (s *Statuses) Feed(p []byte, f func(number, code int)) {
	for len(p) > 0 {
		k := bytes.IndexByte(p, '\n')
		if k < 0 {
			s.add(p)
			return
		}
		s.add(p[:k])
		p = p[k+1:]
		if number, code, ok := parse(s.line); ok && !s.skip {
			f(number, code)
		}
		s.line, s.skip = s.line[:0], false
	}
}

func (s *Statuses) add(p []byte) {
	if len(s.line)+len(p) > maxLine {
		s.skip = true
		return
	}
	s.line = append(s.line, p...)
}

func parse(line []byte) (number, code int, ok bool) {
	a, b, found := bytes.Cut(line, []byte{' '})
	if !found {
		return 0, 0, false
	}
	number, err1 := strconv.Atoi(string(a))
	code, err2 := strconv.Atoi(string(b))
	return number, code, err1 == nil && err2 == nil && number >= 0 && code >= 0 && code <= 255
}
