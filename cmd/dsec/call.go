package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
)

// callFlags are the flags of dsec call.
type callFlags struct {
	stdin   string
	limits  []string
	files   []string
	flags   []string
	env     []string
	collect []string
	cases   string
	compare string
	stop    bool
	show    string
}

func newCall() *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "call [flags] RUNTIME FILE [ARG...]",
		Short: "Run a program once, isolated, without a sandbox; or judge it on test cases",
		Long: `Call runs a short program in a cell that is made ahead of it: nothing of it stays, it has no network, and its time,
memory, processes, output and files are limited. It exits with the program's exit code; 125 = the platform failed.
FILE "-" reads the program from stdin. Runtimes: shell, python, node, c, cpp, go (dsec runtime ls).

--cases judges: DIR holds NAME.in and NAME.out (or NAME.ans) for each case. Exit code 0 = accepted, 1 = not.

dsec call --batch FILE reads calls from FILE, one JSON object (dsec.v1.CallRequest) a line, and prints a result for each,
one a line, as they end; lines with a "submission" (dsec.v1.JudgeRequest) are judged.`,
		Example: `  dsec call python main.py --stdin input.txt --limit cpu=2s --limit memory=128m
  dsec call cpp solution.cpp --cases tests/ --limit cpu=1s --compare tokens
  dsec call --batch calls.jsonl > results.jsonl`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	fl := cmd.Flags()
	fl.SetInterspersed(true)
	fl.StringVar(&f.stdin, "stdin", "", "`file` with the program's input")
	fl.StringArrayVar(&f.limits, "limit", nil, "`NAME=VALUE`: cpu, wall (10s), memory, output, disk (64m), pids, files; may be repeated")
	fl.StringArrayVar(&f.files, "file", nil, "`PATH[=NAME]`: a file beside the program; may be repeated")
	fl.StringArrayVar(&f.flags, "flag", nil, "`argument` for the compiler, like --flag=-O3; may be repeated")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "`NAME=VALUE` of the program's environment; may be repeated")
	fl.StringArrayVar(&f.collect, "collect", nil, "`file[=name]` of the working directory to fetch into this one (under its last name, or as name); may be repeated")
	fl.StringVar(&f.cases, "cases", "", "judge on the cases in `DIR`")
	fl.StringVar(&f.compare, "compare", "trimmed", "how output is compared: exact, trimmed, tokens")
	fl.BoolVar(&f.stop, "stop-early", false, "judge: stop at the first case that is not accepted")
	fl.StringVar(&f.show, "show", "", "judge: show this much output of each case, like 1k (with --json)")
	fl.String("batch", "", "run the calls in `FILE`, one JSON object a line; - = stdin")
	return cmd
}

func (f *callFlags) run(cmd *cobra.Command, args []string) error {
	batch, _ := cmd.Flags().GetString("batch")
	if (batch != "") == (len(args) > 0) || (batch == "" && len(args) < 2) {
		return &exitError{2, errors.New("want a runtime and a program, or --batch: usage: " + cmd.UseLine())}
	}
	c, err := newClient()
	if err != nil {
		return infra(err)
	}
	defer c.Close()
	if batch != "" {
		return callBatch(cmd, c, batch)
	}
	program, err := f.program(cmd, args[0], args[1])
	if err != nil {
		return &exitError{2, err}
	}
	limits, err := callLimits(f.limits)
	if err != nil {
		return &exitError{2, err}
	}
	if f.cases != "" {
		return f.judge(cmd, c, program, limits, args[2:])
	}
	collect, err := parseCollect(f.collect)
	if err != nil {
		return &exitError{2, err}
	}
	spec := &dsecv1.CallSpec{Program: program, Args: args[2:], Env: f.env, Limits: limits, Collect: slices.Sorted(maps.Keys(collect))}
	if f.stdin != "" {
		if spec.Stdin, err = readInput(cmd, f.stdin); err != nil {
			return &exitError{2, err}
		}
	}
	r, err := c.Call(cmd.Context(), &dsecv1.CallRequest{Call: spec})
	if err != nil {
		return infra(err)
	}
	for _, file := range r.GetFiles() {
		if err := os.WriteFile(collect[file.GetPath()], file.GetData(), 0o644); err != nil {
			return err
		}
		delete(collect, file.GetPath())
	}
	for _, path := range slices.Sorted(maps.Keys(collect)) {
		fmt.Fprintf(cmd.ErrOrStderr(), "dsec: the call left no file %s\n", path)
	}
	if wantJSON(cmd) {
		if err := printProto(cmd.OutOrStdout(), r); err != nil {
			return err
		}
	} else {
		_, _ = cmd.OutOrStdout().Write(r.GetStdout())
		_, _ = cmd.ErrOrStderr().Write(r.GetStderr())
		if r.GetCompiling() {
			fmt.Fprintln(cmd.ErrOrStderr(), "dsec: the program does not compile")
		}
	}
	// As of a command: one table of ends and exit codes.
	return exitOf(cmd, &dsecv1.Command{Result: &dsecv1.CommandResult{End: r.GetEnd(), ExitCode: r.GetExitCode(), Signal: r.GetSignal()}})
}

// parseCollect reads file[=name]: what a call's files are called here. Two that would be one file are refused before anything runs.
func parseCollect(specs []string) (map[string]string, error) {
	here, by := map[string]string{}, map[string]string{}
	for _, spec := range specs {
		path, name, ok := strings.Cut(spec, "=")
		if !ok {
			name = filepath.Base(path)
		}
		if path == "" || name == "" || name == "." || name == ".." || name == "/" {
			return nil, fmt.Errorf("--collect %q: want file or file=name", spec)
		}
		if other, taken := by[filepath.Clean(name)]; taken {
			return nil, fmt.Errorf("--collect %s: %s would be written to %s as well: name one of them, as in --collect %s=other", spec, other, name, path)
		}
		if _, twice := here[path]; twice {
			return nil, fmt.Errorf("--collect %s: it is asked for twice", path)
		}
		here[path], by[filepath.Clean(name)] = name, path
	}
	return here, nil
}

func readInput(cmd *cobra.Command, path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(cmd.InOrStdin())
	}
	return os.ReadFile(path)
}

func (f *callFlags) program(cmd *cobra.Command, runtime, path string) (*dsecv1.Program, error) {
	code, err := readInput(cmd, path)
	if err != nil {
		return nil, err
	}
	if !isText(code) {
		return nil, fmt.Errorf("%s: it is not UTF-8 text: want a program's source", path)
	}
	p := &dsecv1.Program{Runtime: runtime, Code: string(code), Flags: f.flags}
	for _, spec := range f.files {
		from, name, ok := strings.Cut(spec, "=")
		if !ok {
			name = filepath.Base(from)
		}
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		st, err := os.Stat(from)
		if err != nil {
			return nil, err
		}
		p.Files = append(p.Files, &dsecv1.CallFile{Path: name, Data: data, Mode: uint32(st.Mode().Perm())})
	}
	return p, nil
}

func isText(b []byte) bool { return strings.ToValidUTF8(string(b), "") == string(b) }

// callLimits reads NAME=VALUE.
func callLimits(pairs []string) (*dsecv1.CallLimits, error) {
	values, err := parsePairs("--limit", pairs, nil)
	if err != nil {
		return nil, err
	}
	l := &dsecv1.CallLimits{}
	for name, v := range values {
		switch name {
		case "cpu":
			l.CpuSeconds, err = parseSeconds(v)
		case "wall":
			l.WallSeconds, err = parseSeconds(v)
		case "memory":
			l.MemoryBytes, err = parseSize(v)
		case "output":
			l.OutputBytes, err = parseSize(v)
		case "disk":
			l.FileBytes, err = parseSize(v)
		case "pids":
			l.Pids, err = parseSize(v)
		case "files":
			l.Files, err = parseSize(v)
		default:
			err = fmt.Errorf("there is no such limit: want cpu, wall, memory, output, disk, pids or files")
		}
		if err != nil {
			return nil, fmt.Errorf("--limit %s=%s: %w", name, v, err)
		}
	}
	return l, nil
}

// readCases reads NAME.in with NAME.out or NAME.ans, sorted by name.
func readCases(dir string) ([]*dsecv1.JudgeCase, error) {
	ins, err := filepath.Glob(filepath.Join(dir, "*.in"))
	if err != nil {
		return nil, err
	}
	slices.Sort(ins)
	var out []*dsecv1.JudgeCase
	for _, in := range ins {
		stem := strings.TrimSuffix(in, ".in")
		c := &dsecv1.JudgeCase{Name: filepath.Base(stem)}
		if c.Stdin, err = os.ReadFile(in); err != nil {
			return nil, err
		}
		if c.Expected, err = os.ReadFile(stem + ".out"); errors.Is(err, os.ErrNotExist) {
			c.Expected, err = os.ReadFile(stem + ".ans")
		}
		if err != nil {
			return nil, fmt.Errorf("case %s: %w (want %s.out or .ans)", c.Name, err, c.Name)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no cases in %s: want NAME.in and NAME.out", dir)
	}
	return out, nil
}

func (f *callFlags) judge(cmd *cobra.Command, c *client.Client, p *dsecv1.Program, l *dsecv1.CallLimits, args []string) error {
	cmp, ok := dsecv1.Comparison_value["COMPARISON_"+strings.ToUpper(f.compare)]
	if !ok || cmp == 0 {
		return &exitError{2, fmt.Errorf("--compare %s: want exact, trimmed or tokens", f.compare)}
	}
	cases, err := readCases(f.cases)
	if err != nil {
		return &exitError{2, err}
	}
	spec := &dsecv1.JudgeSpec{Program: p, Args: args, Env: f.env, Limits: l, Cases: cases, Comparison: dsecv1.Comparison(cmp), StopEarly: f.stop}
	if f.show != "" {
		if spec.ShowOutputBytes, err = parseSize(f.show); err != nil {
			return &exitError{2, fmt.Errorf("--show: %w", err)}
		}
	}
	r, err := c.Judge(cmd.Context(), &dsecv1.JudgeRequest{Submission: spec})
	if err != nil {
		return infra(err)
	}
	if wantJSON(cmd) {
		err = printProto(cmd.OutOrStdout(), r)
	} else {
		err = printJudgement(cmd, r)
	}
	switch {
	case err != nil:
		return err
	case r.GetVerdict() == dsecv1.Verdict_VERDICT_INTERNAL_ERROR:
		return &exitError{code: exitInfra}
	case r.GetVerdict() != dsecv1.Verdict_VERDICT_ACCEPTED:
		return &exitError{code: 1}
	}
	return nil
}

func printJudgement(cmd *cobra.Command, r *dsecv1.JudgeResult) error {
	out := cmd.OutOrStdout()
	if len(r.GetCompilerOutput()) > 0 {
		_, _ = cmd.ErrOrStderr().Write(r.GetCompilerOutput())
	}
	var rows [][]string
	for _, c := range r.GetCases() {
		rows = append(rows, []string{c.GetName(), enumText(c.GetVerdict().String(), "VERDICT_"), fmt.Sprintf("%.3fs", c.GetCpuSeconds()),
			fmt.Sprintf("%.3fs", c.GetWallSeconds()), bytesText(c.GetMemoryPeakBytes()), c.GetEnd().GetMessage()})
	}
	if len(rows) > 0 {
		if err := table(out, "CASE VERDICT CPU WALL MEMORY END", rows); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "%s (%d of %d cases)\n", enumText(r.GetVerdict().String(), "VERDICT_"), r.GetAccepted(), len(r.GetCases()))
	return err
}

// callBatch runs the lines of a file.
func callBatch(cmd *cobra.Command, c *client.Client, path string) error {
	in := cmd.InOrStdin()
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return &exitError{2, err}
		}
		defer f.Close()
		in = f
	}
	var calls []*dsecv1.CallRequest
	var subs []*dsecv1.JudgeRequest
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 16<<20)
	for n := 1; sc.Scan(); n++ {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 {
			continue
		}
		call, sub := &dsecv1.CallRequest{}, &dsecv1.JudgeRequest{}
		err := protojson.Unmarshal(line, call)
		if err == nil {
			calls = append(calls, call)
			continue
		}
		if jerr := protojson.Unmarshal(line, sub); jerr != nil {
			return &exitError{2, fmt.Errorf("%s line %d: %w", path, n, err)}
		}
		subs = append(subs, sub)
	}
	if err := sc.Err(); err != nil {
		return &exitError{2, fmt.Errorf("%s: %w", path, err)}
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	failed := 0
	var werr error
	print := func(id string, ok bool, line func() error, err error) {
		if err != nil {
			failed++
			fmt.Fprintf(cmd.ErrOrStderr(), "dsec: call %s: %s\n", id, lines(message(err)))
			return
		}
		if !ok {
			failed++
		}
		if werr == nil {
			werr = errors.Join(line(), out.Flush())
		}
	}
	err := c.CallBatch(cmd.Context(), calls, func(n int, r *dsecv1.CallResult, err error) {
		id := calls[n].GetOperationId()
		print(id, r.GetEnd().GetBlame() != dsecv1.Blame_BLAME_INFRA, func() error {
			return printProtoLine(out, &dsecv1.CallResponse{OperationId: id, Result: r})
		}, err)
	})
	if err == nil && len(subs) > 0 {
		err = c.JudgeBatch(cmd.Context(), subs, func(n int, r *dsecv1.JudgeResult, err error) {
			id := subs[n].GetOperationId()
			print(id, r.GetVerdict() != dsecv1.Verdict_VERDICT_INTERNAL_ERROR, func() error {
				return printProtoLine(out, &dsecv1.JudgeResponse{OperationId: id, Result: r})
			}, err)
		})
	}
	if err = errors.Join(err, werr); err != nil {
		return infra(err)
	}
	if failed > 0 {
		return &exitError{exitInfra, fmt.Errorf("%d of %d calls were not run, or the platform failed them", failed, len(calls)+len(subs))}
	}
	return nil
}
