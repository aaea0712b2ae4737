package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// defaultPath is what RUN has where neither image nor Dockerfile says.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Options of a build.
type Options struct {
	Client  *client.Client
	Name    string // of the base
	Context *Context
	Args    map[string]string
	// From is what the build begins with, whatever FROM says; nil = what FROM says.
	From *dsecv1.Environment
	// Network is what RUN may reach; empty = nothing.
	Network []*dsecv1.NetworkRule
	// Limits of the sandboxes of RUN; nil = the node's.
	Limits *dsecv1.Limits
	// Labels that the sandboxes of RUN get, beside dsec.build with the name.
	Labels map[string]string
	// StepTimeout bounds one RUN; 0 = one hour.
	StepTimeout time.Duration
	// NoCache does every step again.
	NoCache bool
	// Source is what listings say that the base came from.
	Source string
	// Step is called when a step begins or was found done, Output with what RUN says. nil = nobody listens.
	Step   func(n, of int, s Step, cached bool)
	Output func([]byte) error
}

// Result of a build.
type Result struct {
	Layer  *dsecv1.Layer
	Reused bool // the name has a version with the same content already
	Cached int  // steps that were not done again
	Steps  int
}

// builder is one build.
type builder struct {
	o      Options
	f      *File
	lex    *shell.Lex
	words  int               // bytes of words that were filled in
	meta   map[string]string // ARGs before FROM
	args   map[string]string
	used   map[string]bool // of Options.Args
	stack  []string        // digests, bottom to top
	config *dsecv1.ImageConfig
	shell  []string
	cmd    bool // this Dockerfile has a CMD; that of its base is no argument of another ENTRYPOINT
	cached int
}

// Build makes a base. Errors: *LineError for what a line is to blame for, with sandbox.ErrInvalid, ErrNotFound or
// ErrFailedPrecondition (a command of RUN failed); others are the service's.
func Build(ctx context.Context, f *File, o Options) (*Result, error) {
	if err := layer.CheckName(o.Name); err != nil {
		return nil, err
	}
	if o.StepTimeout == 0 {
		o.StepTimeout = time.Hour
	}
	b := &builder{o: o, f: f, lex: shell.NewLex(f.escape), meta: map[string]string{}, args: map[string]string{}, used: map[string]bool{},
		config: &dsecv1.ImageConfig{}, shell: []string{"/bin/sh", "-c"}}
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	for n, s := range f.Steps {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if err := b.step(ctx, n, s); err != nil {
			var le *LineError
			if errors.As(err, &le) || ctx.Err() != nil {
				return nil, err
			}
			return nil, &LineError{s.Line, err}
		}
	}
	for name := range o.Args {
		if !b.used[name] {
			return nil, at(0, sandbox.ErrInvalid, "the build argument %q is given, and there is no ARG %s", name, name)
		}
	}
	if len(b.stack) == 0 {
		return nil, at(0, sandbox.ErrInvalid, "nothing was made: the base would be empty")
	}
	resp, err := o.Client.Layers.PublishLayer(ctx, &dsecv1.PublishLayerRequest{Kind: dsecv1.LayerKind_LAYER_KIND_BASE, Name: o.Name, Digests: b.stack, Config: b.config, Source: o.Source})
	if err != nil {
		return nil, err
	}
	return &Result{Layer: resp.GetLayer(), Reused: resp.GetReused(), Cached: b.cached, Steps: len(f.Steps)}, nil
}

// begin reads the ARGs before FROM and finds what FROM names.
func (b *builder) begin(ctx context.Context) error {
	for n := range b.f.args {
		a := &b.f.args[n]
		if err := a.Expand(b.expander(b.meta)); err != nil {
			return &LineError{lineOf(a.Location()), fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)}
		}
		for _, kv := range a.Args {
			if v, ok := b.o.Args[kv.Key]; ok {
				b.meta[kv.Key], b.used[kv.Key] = v, true
			} else if kv.Value != nil {
				b.meta[kv.Key] = *kv.Value
			}
		}
	}
	if b.o.From != nil {
		found, err := b.o.Client.Environments.InspectEnvironment(ctx, &dsecv1.InspectEnvironmentRequest{Environment: b.o.From, Paths: -1})
		if err != nil {
			return err
		}
		b.take(found)
		return nil
	}
	from, err := b.expander(b.meta)(b.f.From)
	switch {
	case err != nil:
		return &LineError{b.f.from, fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)}
	case from == "":
		return at(b.f.from, sandbox.ErrInvalid, "FROM %s is empty when its arguments are filled in", b.f.From)
	case from == "scratch":
		return nil
	}
	if err := b.base(ctx, from); err != nil {
		return &LineError{b.f.from, fmt.Errorf("FROM %s: %w", from, err)}
	}
	return nil
}

// base takes a base of the catalogue; an image of a registry that was never imported is.
func (b *builder) base(ctx context.Context, from string) error {
	ask := func() (*dsecv1.InspectEnvironmentResponse, error) {
		return b.o.Client.Environments.InspectEnvironment(ctx, &dsecv1.InspectEnvironmentRequest{Environment: &dsecv1.Environment{Image: from}, Paths: -1})
	}
	found, err := ask()
	if connect.CodeOf(err) == connect.CodeNotFound && ofRegistry(from) {
		if err := b.pull(ctx, from); err != nil {
			return err
		}
		found, err = ask()
	}
	if err != nil {
		return err
	}
	b.take(found)
	return nil
}

// take begins with layers that there are.
func (b *builder) take(found *dsecv1.InspectEnvironmentResponse) {
	for _, l := range found.GetLayers() {
		b.stack = append(b.stack, l.GetLayer().GetDigest())
	}
	if c, ok := proto.Clone(found.GetConfig()).(*dsecv1.ImageConfig); ok && c != nil {
		b.config = c
	}
}

// ofRegistry tells a reference that names its registry from a name of the catalogue that is misspelt.
func ofRegistry(from string) bool {
	rest, scheme := strings.CutPrefix(from, "docker://")
	host, _, slash := strings.Cut(rest, "/")
	return scheme || slash && (strings.ContainsAny(host, ".:") || host == "localhost")
}

func (b *builder) pull(ctx context.Context, from string) error {
	s, err := b.o.Client.Layers.ImportLayer(ctx, &dsecv1.ImportLayerRequest{Kind: dsecv1.LayerKind_LAYER_KIND_BASE, Source: "docker://" + strings.TrimPrefix(from, "docker://")})
	if err != nil {
		return err
	}
	defer s.Close()
	for s.Receive() { // to its end
	}
	return s.Err()
}

// What variables may make of a word, and of all words of a file. Each line of ENV A=$A$A doubles what it is about.
const (
	maxWord  = 128 << 10 // bytes: what Linux takes as one variable
	maxWords = 8 << 20
)

// replacement is what may make a word longer than its variables together.
var replacement = regexp.MustCompile(`\$\{\w+/`)

// mayBe is the most bytes that a word may come to, known before it is filled in.
func mayBe(word string, longest int) float64 {
	n := float64(strings.Count(word, "$"))
	return float64(len(word)) + n*math.Pow(float64(longest), float64(1+len(replacement.FindAllStringIndex(word, -1))))
}

// expander fills in $NAME and ${NAME}; ENV goes before ARG. Error: ErrInvalid for a word that grows beyond its bounds.
func (b *builder) expander(args map[string]string) instructions.SingleWordExpander {
	return func(word string) (string, error) {
		longest := len(word) // of a default that the word itself has
		for _, kv := range b.config.Env {
			longest = max(longest, len(kv))
		}
		for _, v := range args {
			longest = max(longest, len(v))
		}
		if strings.Contains(word, "$") && mayBe(word, longest) > maxWords {
			return "", fmt.Errorf("%.60q, filled in, may be longer than %d MiB", word, maxWords>>20)
		}
		env := make([]string, 0, len(args))
		for _, k := range slices.Sorted(maps.Keys(args)) {
			if _, ok := variable(b.config.Env, k); !ok {
				env = append(env, k+"="+args[k])
			}
		}
		out, _, err := b.lex.ProcessWord(word, shell.EnvsFromSlice(append(env, b.config.Env...)))
		if err != nil {
			return "", err
		}
		if len(out) > maxWord {
			return "", fmt.Errorf("%.60q, filled in, is %d bytes long: want at most %d", word, len(out), maxWord)
		}
		if b.words += len(out); b.words > maxWords {
			return "", fmt.Errorf("the words of this file, filled in, are longer than %d MiB together", maxWords>>20)
		}
		return out, nil
	}
}

func variable(env []string, name string) (string, bool) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

func setVariable(env []string, name, value string) []string {
	for n, kv := range env {
		if strings.HasPrefix(kv, name+"=") {
			env[n] = name + "=" + value
			return env
		}
	}
	return append(env, name+"="+value)
}

// note tells that a step begins.
func (b *builder) note(n int, s Step, cached bool) {
	if cached {
		b.cached++
	}
	if b.o.Step != nil {
		b.o.Step(n+1, len(b.f.Steps), s, cached)
	}
}

// step carries out one instruction.
func (b *builder) step(ctx context.Context, n int, s Step) error {
	switch s.cmd.(type) {
	case *instructions.RunCommand, *instructions.CmdCommand, *instructions.EntrypointCommand, *instructions.ShellCommand: // the shell's business
	default:
		if e, ok := s.cmd.(instructions.SupportsSingleWordExpansion); ok {
			if err := e.Expand(b.expander(b.args)); err != nil {
				return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
			}
		}
	}
	switch c := s.cmd.(type) {
	case *instructions.RunCommand:
		return b.run(ctx, n, s, c)
	case *instructions.CopyCommand:
		return b.copy(ctx, n, s, c.SourcesAndDest, c.Chown, c.Chmod)
	case *instructions.AddCommand:
		return b.copy(ctx, n, s, c.SourcesAndDest, c.Chown, c.Chmod)
	case *instructions.WorkdirCommand:
		return b.workdir(ctx, n, s, c.Path)
	}
	b.note(n, s, false)
	switch c := s.cmd.(type) {
	case *instructions.ArgCommand:
		for _, kv := range c.Args {
			if v, ok := b.o.Args[kv.Key]; ok {
				b.args[kv.Key], b.used[kv.Key] = v, true
			} else if kv.Value != nil {
				b.args[kv.Key] = *kv.Value
			} else if v, ok := b.meta[kv.Key]; ok {
				b.args[kv.Key] = v
			}
		}
	case *instructions.EnvCommand:
		for _, kv := range c.Env {
			b.config.Env = setVariable(b.config.Env, kv.Key, kv.Value)
		}
	case *instructions.UserCommand:
		b.config.User = c.User
	case *instructions.ShellCommand:
		if len(c.Shell) == 0 {
			return fmt.Errorf("%w: SHELL needs a program", sandbox.ErrInvalid)
		}
		b.shell = c.Shell
	case *instructions.EntrypointCommand:
		b.config.Entrypoint = b.line(c.ShellDependantCmdLine)
		if !b.cmd {
			b.config.Cmd = nil
		}
	case *instructions.CmdCommand:
		b.config.Cmd, b.cmd = b.line(c.ShellDependantCmdLine), true
	case *instructions.LabelCommand:
		if b.config.Labels == nil {
			b.config.Labels = map[string]string{}
		}
		for _, kv := range c.Labels {
			b.config.Labels[kv.Key] = kv.Value
		}
	case *instructions.ExposeCommand:
		for _, p := range c.Ports {
			if !slices.Contains(b.config.ExposedPorts, p) {
				b.config.ExposedPorts = append(b.config.ExposedPorts, p)
			}
		}
	}
	return nil
}

// line is a command as it is executed.
func (b *builder) line(c instructions.ShellDependantCmdLine) []string {
	if c.PrependShell {
		return append(slices.Clone(b.shell), strings.Join(c.CmdLine, " "))
	}
	return c.CmdLine
}

// key names a step by all that its result depends on.
func (b *builder) key(parts ...any) string {
	text, err := json.Marshal(append([]any{"dsec build 1", b.stack}, parts...))
	if err != nil {
		panic(err) // strings, numbers, lists and maps of them
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// known takes the result of a step that was done before; false = it was not.
func (b *builder) known(ctx context.Context, key string) (bool, error) {
	if b.o.NoCache {
		return false, nil
	}
	resp, err := b.o.Client.Layers.GetStep(ctx, &dsecv1.GetStepRequest{Key: key})
	if connect.CodeOf(err) == connect.CodeNotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	b.stack = append(b.stack, resp.GetLayer().GetDigest())
	return true, nil
}
