package initd

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/users"
	"github.com/opendsec/dsec/guest/wire"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Limits of commands, set once by limits.
var softNoFile, hardNoFile, hardCore uint64

// limits takes all descriptors that dsec-init may have, and remembers what commands get.
func limits() {
	var r unix.Rlimit
	if unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &r) == nil {
		hardNoFile, softNoFile = r.Max, min(r.Max, 1024)
		r.Cur = r.Max
		_ = unix.Prlimit(0, unix.RLIMIT_NOFILE, &r, nil)
	}
	if unix.Prlimit(0, unix.RLIMIT_CORE, nil, &r) == nil {
		hardCore = r.Max
	}
}

// environ builds a command's environment: what a login would set, then the sandbox's, then the command's own;
// the later wins.
func environ(u *users.User, sandbox, own []string, terminal bool) ([]string, *wire.Error) {
	shell := u.Shell
	if shell == "" {
		shell = "/bin/sh"
	}
	env := make([]string, 0, 8+len(sandbox)+len(own))
	env = append(env, "PATH="+defaultPath, "HOME="+u.Home, "USER="+u.Name, "LOGNAME="+u.Name, "SHELL="+shell)
	if terminal {
		env = append(env, "TERM=xterm-256color")
	}
	index := make(map[string]int, cap(env))
	for k, e := range env {
		name, _, _ := strings.Cut(e, "=")
		index[name] = k
	}
	for _, list := range [][]string{sandbox, own} {
		for _, e := range list {
			name, _, ok := strings.Cut(e, "=")
			if !ok || name == "" || strings.IndexByte(e, 0) >= 0 {
				return nil, &wire.Error{Code: wire.CodeInvalid, Message: "an environment entry must be NAME=value without NUL"}
			}
			if k, ok := index[name]; ok {
				env[k] = e
			} else {
				index[name] = len(env)
				env = append(env, e)
			}
		}
	}
	return env, nil
}

func getenv(env []string, name string) string {
	for _, e := range env {
		if len(e) > len(name) && e[len(name)] == '=' && e[:len(name)] == name {
			return e[len(name)+1:]
		}
	}
	return ""
}

// candidates are the paths at which execve is tried for a program, as a shell would.
func candidates(argv, env []string) []program {
	if strings.Contains(argv[0], "/") {
		return []program{{argv[0], argv}}
	}
	path := getenv(env, "PATH")
	if path == "" {
		path = defaultPath
	}
	var l []program
	for len(l) < 64 {
		dir, rest, more := strings.Cut(path, ":")
		if dir == "" {
			dir = "."
		}
		l = append(l, program{dir + "/" + argv[0], argv})
		if !more {
			break
		}
		path = rest
	}
	return l
}

// shells are the programs that run a shell command line.
func shells(args ...string) []program {
	return []program{
		{"/bin/bash", append([]string{"bash"}, args...)},
		{"/bin/sh", append([]string{"sh"}, args...)},
	}
}
