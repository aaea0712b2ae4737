package e2b

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strings"
)

// maxSteps bounds a template's steps.
const maxSteps = 500

// buildStart is the body that starts a build.
type buildStart struct {
	FromImage         string          `json:"fromImage"`
	FromTemplate      string          `json:"fromTemplate"`
	FromImageRegistry json.RawMessage `json:"fromImageRegistry"`
	Force             bool            `json:"force"`
	Steps             []buildStep     `json:"steps"`
	StartCmd          string          `json:"startCmd"`
	ReadyCmd          string          `json:"readyCmd"`
}

type buildStep struct {
	Type      string   `json:"type"`
	Args      []string `json:"args"`
	FilesHash string   `json:"filesHash"`
	Force     bool     `json:"force"`
}

// provision makes the user that clients expect, where an image does not have it. Its home need not be empty.
const provision = `set -e
grep -q '^user:' /etc/passwd || {
	id=1000; while grep -q "^[^:]*:[^:]*:$id:" /etc/passwd /etc/group; do id=$((id+1)); done
	sh=/bin/sh; [ ! -x /bin/bash ] || sh=/bin/bash
	echo "user:x:$id:$id::/home/user:$sh" >> /etc/passwd
	echo "user:x:$id:" >> /etc/group
}
mkdir -p /home/user
chown user:user /home/user`

// dockerfile is the steps as our own builds take them. step tells which step a line belongs to, from 1; 0 = ours. Files of a
// COPY lie below their hash in the build's context. user and workdir are those of the template that it begins with, or empty.
// Errors: 400 for what cannot be built.
func (in *buildStart) dockerfile(user, workdir string) (text string, step []int, err error) {
	if len(in.Steps) > maxSteps {
		return "", nil, unsupported("%d steps are more than %d", len(in.Steps), maxSteps)
	}
	var lines []string
	add := func(n int, line string) {
		lines, step = append(lines, line), append(step, n)
	}
	add(0, "FROM scratch") // what it is made from is given beside it
	if in.FromImage != "" {
		user, workdir = "user", "/home/user"
		add(0, "USER root")
		add(0, "RUN "+list("/bin/sh", "-c", provision))
	}
	if user == "" {
		user = "root"
	}
	add(0, "USER "+word1(user))
	if workdir != "" {
		add(0, "WORKDIR "+word1(workdir))
	}
	for k, s := range in.Steps {
		n := k + 1
		arg := func(i int) string {
			if i < len(s.Args) {
				return s.Args[i]
			}
			return ""
		}
		if s.Type != "RUN" && strings.ContainsAny(strings.Join(s.Args, ""), "\n\r\x00") {
			return "", nil, unsupported("step %d: %.20s with a line break in its arguments", n, s.Type)
		}
		words := map[string]int{"RUN": 1, "COPY": 2, "WORKDIR": 0, "USER": 0} // the first argument that is a word of a line
		for i, a := range s.Args {
			// A line that ends in an escaped blank would go on with the next one.
			if from, ok := words[s.Type]; ok && i >= from && strings.TrimSpace(a) != a {
				return "", nil, unsupported("step %d: %.20s with blanks around its argument %.40q", n, s.Type, a)
			}
		}
		switch s.Type {
		case "RUN":
			if arg(0) == "" {
				return "", nil, refused(http.StatusBadRequest, "step %d: RUN has no command", n)
			}
			if as := arg(1); as != "" && as != user {
				add(n, "USER "+word1(as))
			}
			add(n, "RUN "+list("/bin/bash", "-c", arg(0)))
			if as := arg(1); as != "" && as != user {
				add(n, "USER "+word1(user))
			}
		case "COPY":
			line, err := s.copy(user)
			if err != nil {
				return "", nil, refused(http.StatusBadRequest, "step %d: %v", n, err)
			}
			add(n, line)
		case "ENV":
			if len(s.Args) == 0 || len(s.Args)%2 != 0 {
				return "", nil, refused(http.StatusBadRequest, "step %d: ENV wants names and values", n)
			}
			for i := 0; i < len(s.Args); i += 2 {
				if s.Args[i] == "" || strings.ContainsAny(s.Args[i], "= \t\"'\\$") {
					return "", nil, refused(http.StatusBadRequest, "step %d: %.40q is no variable's name", n, s.Args[i])
				}
				add(n, "ENV "+s.Args[i]+`="`+quoted.Replace(s.Args[i+1])+`"`)
			}
		case "WORKDIR", "USER":
			if arg(0) == "" {
				return "", nil, refused(http.StatusBadRequest, "step %d: %s wants one argument", n, s.Type)
			}
			if s.Type == "USER" {
				user = arg(0)
				add(n, "USER "+word1(user))
				continue
			}
			// A directory that is made for it is the user's.
			add(n, "USER root")
			add(n, "RUN "+list("/bin/sh", "-c", `[ -d "$0" ] || { mkdir -p "$0" && chown "$1" "$0"; }`, arg(0), user))
			add(n, "USER "+word1(user))
			add(n, "WORKDIR "+word1(arg(0)))
		default:
			return "", nil, unsupported("step %d: %.40s", n, s.Type)
		}
	}
	return strings.Join(lines, "\n") + "\n", step, nil
}

// copy is a COPY of files below the step's hash.
func (s *buildStep) copy(user string) (string, error) {
	if len(s.Args) < 2 || s.Args[0] == "" || s.Args[1] == "" {
		return "", fmt.Errorf("COPY wants a source and a destination")
	}
	if !isHash(s.FilesHash) {
		return "", fmt.Errorf("COPY without the hash of its files")
	}
	from := path.Join(s.FilesHash, path.Join("/", s.Args[0]))
	line := "COPY"
	owner := user
	if len(s.Args) > 2 && s.Args[2] != "" {
		owner = s.Args[2]
	}
	if owner != "" {
		line += " --chown=" + word1(owner)
	}
	if len(s.Args) > 3 && s.Args[3] != "" {
		line += " --chmod=" + word1(s.Args[3])
	}
	return line + " " + list(unexpanded.Replace(from), unexpanded.Replace(s.Args[1])), nil
}

var (
	// unexpanded keeps a word from being expanded.
	unexpanded = strings.NewReplacer(`\`, `\\`, `$`, `\$`, `"`, `\"`, `'`, `\'`)
	quoted     = strings.NewReplacer(`\`, `\\`, `$`, `\$`, `"`, `\"`)
)

// word1 is one word of a line.
func word1(s string) string {
	return strings.NewReplacer(`\`, `\\`, `$`, `\$`, `"`, `\"`, `'`, `\'`, " ", `\ `, "\t", "\\\t").Replace(s)
}

// list is a line's arguments as JSON: no line breaks, and no word that a here-document would begin with.
func list(words ...string) string {
	b, err := json.Marshal(words)
	if err != nil {
		panic(err) // strings
	}
	return string(b)
}

func isHash(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}
