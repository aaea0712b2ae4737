package build

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"github.com/opendsec/dsec/sandbox"
)

// maxFile bounds a Dockerfile, bytes.
const maxFile = 1 << 20

// File is a Dockerfile of one stage that holds nothing but what can be built.
type File struct {
	From   string // as written: a base of the catalogue, an image reference, or scratch
	Steps  []Step
	args   []instructions.ArgCommand // before FROM
	from   int                       // its line
	escape rune
}

// Step is one instruction after FROM.
type Step struct {
	Line int
	Text string // as written, continuation lines joined
	cmd  instructions.Command
}

// LineError says what is wrong with one line of a Dockerfile.
type LineError struct {
	Line int // from 1; 0 = not of one line
	Err  error
}

func (e *LineError) Error() string {
	if e.Line == 0 {
		return "Dockerfile: " + e.Err.Error()
	}
	return fmt.Sprintf("Dockerfile, line %d: %v", e.Line, e.Err)
}

// Unwrap returns what is wrong.
func (e *LineError) Unwrap() error { return e.Err }

func at(line int, kind error, format string, args ...any) error {
	return &LineError{line, fmt.Errorf("%w: %s", kind, fmt.Sprintf(format, args...))}
}

// Parse reads a Dockerfile. Errors: *LineError with sandbox.ErrInvalid for what is wrong, sandbox.ErrUnsupported for what
// cannot be built here.
func Parse(text []byte) (*File, error) {
	if len(text) > maxFile {
		return nil, at(0, sandbox.ErrInvalid, "it has %d bytes, at most %d are read", len(text), maxFile)
	}
	for n, line := range bytes.Split(text, []byte("\n")) {
		if !utf8.Valid(line) && !bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) {
			return nil, at(n+1, sandbox.ErrInvalid, "%.80q is not UTF-8: save the file as UTF-8, or write other bytes as escapes of the program that reads them, as in printf '\\351'", line)
		}
	}
	parsed, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		return nil, located(err)
	}
	stages, args, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return nil, located(err)
	}
	if len(stages) != 1 {
		line := 0
		if len(stages) > 1 {
			line = lineOf(stages[1].Location)
		}
		if len(stages) == 0 {
			return nil, at(0, sandbox.ErrInvalid, "there is no FROM")
		}
		return nil, at(line, sandbox.ErrUnsupported, "builds of several stages; build each with a Dockerfile of its own")
	}
	s := stages[0]
	f := &File{From: s.BaseName, args: args, from: lineOf(s.Location), escape: parsed.EscapeToken}
	if s.Platform != "" {
		return nil, at(f.from, sandbox.ErrUnsupported, "FROM --platform: sandboxes run linux/amd64")
	}
	for _, c := range s.Commands {
		step := Step{Line: lineOf(c.Location()), cmd: c}
		if t, ok := c.(fmt.Stringer); ok {
			step.Text = t.String()
		}
		if why := unsupported(c); why != "" {
			return nil, at(step.Line, sandbox.ErrUnsupported, "%s", why)
		}
		f.Steps = append(f.Steps, step)
	}
	return f, nil
}

func lineOf(r []parser.Range) int {
	if len(r) == 0 {
		return 0
	}
	return r[0].Start.Line
}

// located gives an error of the parser its line and kind.
func located(err error) error {
	line := 0
	var le *parser.LocationError
	if errors.As(err, &le) && len(le.Locations) > 0 {
		line = lineOf(le.Locations[0])
	}
	text := strings.TrimPrefix(err.Error(), fmt.Sprintf("dockerfile parse error on line %d: ", line)) // said already
	return &LineError{line, fmt.Errorf("%w: %s", sandbox.ErrInvalid, text)}
}

// unsupported says why an instruction cannot be built; "" = it can.
func unsupported(c instructions.Command) string {
	switch c := c.(type) {
	case *instructions.RunCommand:
		switch {
		case len(c.FlagsUsed) > 0:
			return "RUN --" + strings.Join(c.FlagsUsed, " --") + ": mounts, devices, network and security modes are not there; `dsec image build --allow` says what RUN may reach"
		case len(c.Files) > 0:
			return "RUN with a here-document; write the commands with && or copy a script"
		}
	case *instructions.CopyCommand:
		switch {
		case c.From != "":
			return "COPY --from: files come from the build's context alone"
		case c.Parents || len(c.ExcludePatterns) > 0:
			return "COPY with --parents or --exclude; use .dockerignore"
		case len(c.SourceContents) > 0:
			return "COPY of a here-document; put the file into the context"
		}
	case *instructions.AddCommand:
		switch {
		case len(c.SourceContents) > 0:
			return "ADD of a here-document; put the file into the context"
		case c.Checksum != "" || c.KeepGitDir != nil || slices.ContainsFunc(c.SourcePaths, remote):
			return "ADD of something that is not in the context; fetch it with RUN"
		case len(c.ExcludePatterns) > 0:
			return "ADD with --exclude; use .dockerignore"
		case c.Unpack != nil && *c.Unpack || c.Unpack == nil && slices.ContainsFunc(c.SourcePaths, archive):
			return "ADD of an archive, which would be unpacked; COPY it and unpack it with RUN"
		}
	case *instructions.HealthCheckCommand:
		return "HEALTHCHECK: nothing would run it"
	case *instructions.OnbuildCommand:
		return "ONBUILD"
	case *instructions.StopSignalCommand:
		return "STOPSIGNAL: sandboxes are not stopped by a signal"
	case *instructions.VolumeCommand:
		return "VOLUME: what a sandbox writes lies in its writable layer"
	case *instructions.ShellCommand, *instructions.ArgCommand, *instructions.EnvCommand, *instructions.WorkdirCommand, *instructions.UserCommand,
		*instructions.EntrypointCommand, *instructions.CmdCommand, *instructions.LabelCommand, *instructions.ExposeCommand, *instructions.MaintainerCommand:
	default:
		return strings.ToUpper(c.Name())
	}
	return ""
}

func remote(source string) bool {
	return strings.Contains(source, "://") || strings.HasPrefix(source, "git@")
}

func archive(source string) bool {
	for _, suffix := range []string{".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst"} {
		if strings.HasSuffix(source, suffix) {
			return true
		}
	}
	return false
}
