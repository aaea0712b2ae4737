package edge

import (
	"strings"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/guest/wire"
)

const (
	// maxArg is the kernel's bound for one argument or environment variable (MAX_ARG_STRLEN), terminator
	// included; maxArgs bounds all of them, pointers included, below its 2 MiB (a quarter of the stack limit)
	// less what the program's own name and auxiliary vector take.
	maxArg  = 128 << 10
	maxArgs = 2<<20 - 64<<10
	// maxRecorded bounds what a record and listings keep of a command's arguments and environment.
	maxRecorded = 16 << 10
	maxTimeout  = 30 * 24 * 3600 // seconds
)

// checkCommand refuses what dsec-init or the kernel could not start. env is the size of the sandbox's own
// environment. Error: ErrInvalid, without any value of env or secrets.
func checkCommand(s *dsecv1.CommandSpec, env int64) error {
	switch {
	case s == nil || len(s.Argv) == 0 && s.Shell == "":
		return invalid("a command needs argv or shell")
	case len(s.Argv) > 0 && s.Shell != "":
		return invalid("a command has either argv or shell, not both")
	case s.SessionId != "" && s.Shell == "":
		return invalid("commands in a session are given as shell, not argv")
	case s.SessionId != "" && (s.User != "" || s.Terminal != nil || s.Cwd != "" || len(s.Env)+len(s.Secrets) > 0 || len(s.Stdin) > 0 || s.KeepStdinOpen):
		return invalid("a command in a session has the session's user, directory and environment, and no stdin or terminal: use cd, export and a here-document")
	case s.Terminal != nil && (s.Terminal.Columns > 65535 || s.Terminal.Rows > 65535):
		return invalid("a terminal has at most 65535 columns and rows")
	case len(s.Argv) > 0 && s.Argv[0] == "":
		return invalid("argv[0], the program, is empty")
	}
	if t := s.GetTimeoutSeconds(); !(t >= 0 && t <= maxTimeout) {
		return invalid("timeout_seconds is %v: want at most %d, or 0 for none", t, maxTimeout)
	}
	if err := checkUserAndDir(s.User, s.Cwd); err != nil {
		return err
	}
	total := env
	for i, a := range append([]string{s.Shell}, s.Argv...) {
		if len(a) >= maxArg {
			return invalid("argument %d has %d bytes, the kernel takes %d: put the data into stdin or a file", i, len(a), maxArg-1)
		}
		if strings.Contains(a, "\x00") {
			return invalid("argument %d holds a NUL byte", i)
		}
		total += int64(len(a)) + 9
	}
	merged, err := mergeEnv(nil, s.Env, s.Secrets)
	if err != nil {
		return err
	}
	for _, kv := range merged {
		total += int64(len(kv)) + 9
	}
	if total > maxArgs {
		return invalid("arguments and environment have %d bytes, the kernel takes %d: put the data into stdin or a file", total, maxArgs)
	}
	return nil
}

// recorded is the spec as it is kept and listed: without stdin and secrets, and with long arguments cut. It
// shares the request's strings.
func recorded(s *dsecv1.CommandSpec) *dsecv1.CommandSpec {
	out := &dsecv1.CommandSpec{
		Argv: s.Argv, Shell: s.Shell, Env: s.Env, Cwd: s.Cwd, User: s.User, KeepStdinOpen: s.KeepStdinOpen,
		TimeoutSeconds: s.TimeoutSeconds, Terminal: s.Terminal, SessionId: s.SessionId, Tag: clip(s.Tag, maxLabel),
	}
	if proto.Size(out) <= maxRecorded {
		return out
	}
	left := maxRecorded
	cut := func(text string) string {
		if len(text) > left {
			text = clip(text, left) + "...(cut)"
		}
		left = max(0, left-len(text))
		return text
	}
	out.Shell, out.Argv, out.Env = cut(s.Shell), nil, map[string]string{}
	for _, a := range s.Argv {
		if left == 0 {
			out.Argv = append(out.Argv, "...(cut)")
			break
		}
		out.Argv = append(out.Argv, cut(a))
	}
	for _, k := range sortedKeys(s.Env) {
		if left == 0 {
			break
		}
		out.Env[k] = cut(s.Env[k])
		left = max(0, left-len(k))
	}
	return out
}

// wireStart is the request to dsec-init; the only place where secrets go.
func wireStart(id string, s *dsecv1.CommandSpec) *wire.Start {
	env, _ := mergeEnv(nil, s.Env, s.Secrets) // checked before
	w := &wire.Start{
		ID: id, Argv: s.Argv, Shell: s.Shell, Env: env, Cwd: s.Cwd, User: s.User, Session: s.SessionId,
		Stdin: len(s.Stdin) > 0 || s.KeepStdinOpen,
	}
	if t := s.GetTimeoutSeconds(); t > 0 {
		w.TimeoutMillis = max(1, seconds(t).Milliseconds()) // 0 would be none
	}
	if t := s.Terminal; t != nil {
		w.Terminal, w.Columns, w.Rows = true, uint16(t.Columns), uint16(t.Rows)
	}
	return w
}
