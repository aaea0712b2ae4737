package fncall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opendsec/dsec/guest/cell"
	"github.com/opendsec/dsec/sandbox"
)

// Verdict of a case or submission.
type Verdict string

// The verdicts.
const (
	Accepted      Verdict = "accepted"
	WrongAnswer   Verdict = "wrong_answer"
	TimeLimit     Verdict = "time_limit"
	MemoryLimit   Verdict = "memory_limit"
	RuntimeError  Verdict = "runtime_error"
	CompileError  Verdict = "compile_error"
	OutputLimit   Verdict = "output_limit"
	InternalError Verdict = "internal_error" // nothing is known about the submission
	Skipped       Verdict = "skipped"
)

// Case is one input and the output that it should give.
type Case struct {
	Name            string
	Stdin, Expected []byte
}

// Submission is a program and what it is judged by.
type Submission struct {
	ID string
	Program
	Args, Env  []string
	Limits     Limits
	Cases      []Case
	Comparison Comparison
	StopEarly  bool // cases in order, none after the first that fails
	Show       int  // bytes of output that are wanted back
}

// CaseResult is what came of one case.
type CaseResult struct {
	Verdict Verdict
	Result  *Result // nil when skipped
}

// Judgement is what came of a submission.
type Judgement struct {
	Verdict  Verdict
	Cases    []CaseResult
	Compiler []byte // what it said when it failed
	Compiled time.Duration
}

const (
	maxCases = 1000
	maxShown = 64 << 20 // bytes of output that one judgement returns
	// casesAtOnce of one submission: others shall have their turn too.
	casesAtOnce = 4
)

// verdict of a case.
func (s *Submission) verdict(r *Result, want []byte) Verdict {
	switch {
	case r.Failure.Blame == sandbox.BlameInfra, r.Failure.Kind == sandbox.KindKilled:
		return InternalError
	case r.Failure.Kind == sandbox.KindTimedOut:
		return TimeLimit
	case r.Failure.Kind == sandbox.KindOOMKilled:
		return MemoryLimit
	case r.Failure.Kind == sandbox.KindOutputLimit, r.Failure.Kind == sandbox.KindDiskFull:
		return OutputLimit
	case !r.Passed():
		return RuntimeError
	case s.Comparison.Equal(r.Stdout, want):
		return Accepted
	}
	return WrongAnswer
}

func (s *Submission) check() error {
	if len(s.Cases) == 0 || len(s.Cases) > maxCases {
		return fmt.Errorf("submission: %w: %d cases: want 1 to %d", sandbox.ErrInvalid, len(s.Cases), maxCases)
	}
	total := 0
	for _, c := range s.Cases {
		if len(c.Name) > 256 {
			return fmt.Errorf("submission: %w: the name of a case is longer than 256 bytes", sandbox.ErrInvalid)
		}
		total += len(c.Stdin) + len(c.Expected)
	}
	if total > 2*maxBytes {
		return fmt.Errorf("submission: %w: %d bytes of cases: at most %d", sandbox.ErrInvalid, total, 2*maxBytes)
	}
	if s.Show < 0 || s.Show > 1<<20 {
		return fmt.Errorf("submission: %w: show_output_bytes %d: want 0 to %d", sandbox.ErrInvalid, s.Show, 1<<20)
	}
	if n := 2 * s.Show * len(s.Cases); n > maxShown {
		return fmt.Errorf("submission: %w: show_output_bytes %d of stdout and stderr of %d cases are %d bytes: at most %d", sandbox.ErrInvalid, s.Show, len(s.Cases), n, maxShown)
	}
	return nil
}

// Judge compiles a submission, runs it on its cases and compares. Errors are as of Call.
func (s *Service) Judge(ctx context.Context, project string, sub *Submission) (*Judgement, error) {
	if err := sub.check(); err != nil {
		return nil, err
	}
	r := &Request{Program: sub.Program, Args: sub.Args, Env: sub.Env, Limits: sub.Limits}
	if err := r.check(); err != nil {
		return nil, err
	}
	rt, err := s.state(sub.Runtime)
	if err != nil {
		return nil, err
	}
	if err := sub.Program.check(&rt.def); err != nil {
		return nil, err
	}
	limits, err := sub.Limits.fill(DefaultLimits)
	if err != nil {
		return nil, fmt.Errorf("submission: %w", err)
	}
	j := &Judgement{Verdict: Accepted}
	if len(rt.def.Compile) > 0 {
		_, took, failed, err := rt.compile(ctx, project, &sub.Program)
		if err != nil {
			if failed, err = infra(err); err != nil {
				return nil, err
			}
		}
		j.Compiled = took
		if failed != nil {
			j.Verdict, j.Compiler = CompileError, append(failed.Stdout[:len(failed.Stdout):len(failed.Stdout)], failed.Stderr...)
			if failed.Failure.Blame == sandbox.BlameInfra {
				j.Verdict = InternalError
			}
			return j, nil
		}
	}
	j.Cases = make([]CaseResult, len(sub.Cases))
	at, stop := atomic.Int64{}, atomic.Bool{}
	workers := min(casesAtOnce, len(sub.Cases))
	if sub.StopEarly {
		workers = 1
	}
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		wg.Go(func() {
			for {
				k := int(at.Add(1)) - 1
				if k >= len(sub.Cases) {
					return
				}
				if stop.Load() {
					j.Cases[k] = CaseResult{Verdict: Skipped}
					continue
				}
				c, err := s.runCase(ctx, project, rt, sub, limits, k)
				if err != nil {
					errs[w] = err
					stop.Store(true)
				}
				j.Cases[k] = c
				if sub.StopEarly && c.Verdict != Accepted {
					stop.Store(true)
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, c := range j.Cases {
		if c.Verdict != Accepted {
			j.Verdict = c.Verdict
			break
		}
	}
	return j, nil
}

func (s *Service) runCase(ctx context.Context, project string, rt *runtimeState, sub *Submission, limits *cell.Limits, k int) (CaseResult, error) {
	c := &sub.Cases[k]
	r := &Request{Program: sub.Program, Args: sub.Args, Env: sub.Env, Stdin: c.Stdin}
	out, err := rt.run(ctx, project, r, limits)
	if err != nil {
		return CaseResult{}, err
	}
	v := sub.verdict(out, c.Expected)
	if out.Compiling { // the compiled program was evicted between cases, and cannot be made again
		v = InternalError
	}
	// Copies: what is not shown is not to be kept until the last case has ended.
	out.Stdout, out.Stderr = bytes.Clone(out.Stdout[:min(len(out.Stdout), sub.Show)]), bytes.Clone(out.Stderr[:min(len(out.Stderr), sub.Show)])
	return CaseResult{Verdict: v, Result: out}, nil
}
