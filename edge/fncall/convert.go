package fncall

import (
	"fmt"
	"math"
	"strings"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fncall"
	"github.com/opendsec/dsec/guest/cell"
	"github.com/opendsec/dsec/sandbox"
)

// limits reads limits. Error: ErrInvalid.
func limits(l *dsecv1.CallLimits) (fncall.Limits, error) {
	out := fncall.Limits{Memory: l.GetMemoryBytes(), Pids: l.GetPids(), Output: l.GetOutputBytes(), Files: l.GetFiles(), FileBytes: l.GetFileBytes()}
	for _, f := range []struct {
		name string
		v    float64
		to   *time.Duration
	}{{"cpu_seconds", l.GetCpuSeconds(), &out.CPU}, {"wall_seconds", l.GetWallSeconds(), &out.Wall}} {
		if math.IsNaN(f.v) || f.v < 0 || f.v > 1e6 {
			return out, fmt.Errorf("limit %s of %v: %w: want seconds, or 0 for the default", f.name, f.v, sandbox.ErrInvalid)
		}
		*f.to = time.Duration(f.v * float64(time.Second))
	}
	return out, nil
}

func program(p *dsecv1.Program) (fncall.Program, error) {
	out := fncall.Program{Runtime: p.GetRuntime(), Code: p.GetCode(), Flags: p.GetFlags()}
	var err error
	out.Compile, err = limits(p.GetCompileLimits())
	for _, f := range p.GetFiles() {
		out.Files = append(out.Files, cell.File{Path: f.GetPath(), Data: f.GetData(), Mode: f.GetMode() & 0o777})
	}
	return out, err
}

func request(r *dsecv1.CallRequest) (*fncall.Request, error) {
	c := r.GetCall()
	p, err := program(c.GetProgram())
	if err != nil {
		return nil, err
	}
	l, err := limits(c.GetLimits())
	return &fncall.Request{ID: r.GetOperationId(), Program: p, Args: c.GetArgs(), Env: c.GetEnv(), Stdin: c.GetStdin(), Limits: l,
		Collect: c.GetCollect(), CollectBytes: c.GetCollectBytes()}, err
}

var comparisons = map[dsecv1.Comparison]fncall.Comparison{
	dsecv1.Comparison_COMPARISON_UNSPECIFIED: fncall.Trimmed, dsecv1.Comparison_COMPARISON_TRIMMED: fncall.Trimmed,
	dsecv1.Comparison_COMPARISON_EXACT: fncall.Exact, dsecv1.Comparison_COMPARISON_TOKENS: fncall.Tokens,
}

func submission(r *dsecv1.JudgeRequest) (*fncall.Submission, error) {
	s := r.GetSubmission()
	p, err := program(s.GetProgram())
	if err != nil {
		return nil, err
	}
	cmp, ok := comparisons[s.GetComparison()]
	if !ok {
		return nil, fmt.Errorf("comparison %d: %w: this node does not know it", s.GetComparison(), sandbox.ErrInvalid)
	}
	l, err := limits(s.GetLimits())
	out := &fncall.Submission{ID: r.GetOperationId(), Program: p, Args: s.GetArgs(), Env: s.GetEnv(), Limits: l,
		Comparison: cmp, StopEarly: s.GetStopEarly(), Show: int(min(max(s.GetShowOutputBytes(), -1), 1<<30))}
	for _, c := range s.GetCases() {
		out.Cases = append(out.Cases, fncall.Case{Name: c.GetName(), Stdin: c.GetStdin(), Expected: c.GetExpected()})
	}
	return out, err
}

var blames = map[sandbox.Blame]dsecv1.Blame{
	sandbox.BlameTask: dsecv1.Blame_BLAME_TASK, sandbox.BlameUser: dsecv1.Blame_BLAME_USER,
	sandbox.BlamePolicy: dsecv1.Blame_BLAME_POLICY, sandbox.BlameInfra: dsecv1.Blame_BLAME_INFRA,
}

func failure(f *sandbox.Failure) *dsecv1.Failure {
	if f == nil {
		return nil
	}
	return &dsecv1.Failure{Kind: string(f.Kind), Blame: blames[f.Blame], Message: strings.ToValidUTF8(f.Message, "\uFFFD")}
}

// exitCode is as a shell shows it.
func exitCode(r *fncall.Result) int32 {
	switch {
	case r.Signal != 0:
		return int32(128 + r.Signal)
	case r.Failure.Kind == sandbox.KindCannotStart:
		return 127
	case r.Failure.Kind == sandbox.KindTimedOut, r.Failure.Kind == sandbox.KindOOMKilled, r.Failure.Kind == sandbox.KindOutputLimit:
		if r.ExitCode == 0 {
			return 128 + 9
		}
	}
	return int32(r.ExitCode)
}

func result(r *fncall.Result) *dsecv1.CallResult {
	out := &dsecv1.CallResult{
		End: failure(r.Failure), ExitCode: exitCode(r), Signal: int32(r.Signal), Stdout: r.Stdout, Stderr: r.Stderr, OutputCut: r.Cut,
		CpuSeconds: r.CPU.Seconds(), WallSeconds: r.Wall.Seconds(), MemoryPeakBytes: r.Memory, Compiling: r.Compiling, CompileSeconds: r.Compiled.Seconds(),
	}
	for _, f := range r.Files {
		out.Files = append(out.Files, &dsecv1.CallFile{Path: f.Path, Data: f.Data, Mode: f.Mode})
	}
	return out
}

var verdicts = map[fncall.Verdict]dsecv1.Verdict{
	fncall.Accepted: dsecv1.Verdict_VERDICT_ACCEPTED, fncall.WrongAnswer: dsecv1.Verdict_VERDICT_WRONG_ANSWER,
	fncall.TimeLimit: dsecv1.Verdict_VERDICT_TIME_LIMIT, fncall.MemoryLimit: dsecv1.Verdict_VERDICT_MEMORY_LIMIT,
	fncall.RuntimeError: dsecv1.Verdict_VERDICT_RUNTIME_ERROR, fncall.CompileError: dsecv1.Verdict_VERDICT_COMPILE_ERROR,
	fncall.OutputLimit: dsecv1.Verdict_VERDICT_OUTPUT_LIMIT, fncall.InternalError: dsecv1.Verdict_VERDICT_INTERNAL_ERROR,
	fncall.Skipped: dsecv1.Verdict_VERDICT_SKIPPED,
}

func judgement(sub *fncall.Submission, j *fncall.Judgement) *dsecv1.JudgeResult {
	out := &dsecv1.JudgeResult{Verdict: verdicts[j.Verdict], CompilerOutput: j.Compiler, CompileSeconds: j.Compiled.Seconds()}
	for k, c := range j.Cases {
		p := &dsecv1.CaseResult{Name: sub.Cases[k].Name, Verdict: verdicts[c.Verdict]}
		if c.Verdict == fncall.Accepted {
			out.Accepted++
		}
		if r := c.Result; r != nil {
			p.End, p.ExitCode, p.Signal = failure(r.Failure), exitCode(r), int32(r.Signal)
			p.CpuSeconds, p.WallSeconds, p.MemoryPeakBytes = r.CPU.Seconds(), r.Wall.Seconds(), r.Memory
			p.Stdout, p.Stderr = r.Stdout, r.Stderr
		}
		out.Cases = append(out.Cases, p)
	}
	return out
}
