package testkit

import (
	"fmt"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// The corpus: programs that read a number n and print the sum of 1 to n, in three languages; each kind misbehaves in its
// own way from the case BadCase on.
const (
	casesEach = 10
	badCase   = 7 // of 0 to 9; misbehaviour begins where n reaches 70
)

// Want is what is known about a submission.
type Want struct {
	Name  string
	Good  dsecv1.Verdict // of the cases before the bad one
	Bad   dsecv1.Verdict // of the others
	Whole dsecv1.Verdict
}

// Check compares a judgement with what is known.
func (w Want) Check(r *dsecv1.JudgeResult) error {
	if r.GetVerdict() != w.Whole {
		return fmt.Errorf("verdict %v, want %v; cases %v, compiler %.200q", r.GetVerdict(), w.Whole, r.GetCases(), r.GetCompilerOutput())
	}
	if w.Whole == dsecv1.Verdict_VERDICT_COMPILE_ERROR {
		return nil
	}
	if len(r.GetCases()) != casesEach {
		return fmt.Errorf("%d cases, want %d", len(r.GetCases()), casesEach)
	}
	for k, c := range r.GetCases() {
		want := w.Good
		if k >= badCase {
			want = w.Bad
		}
		if c.GetVerdict() != want && c.GetVerdict() != dsecv1.Verdict_VERDICT_SKIPPED {
			return fmt.Errorf("case %d: %v, want %v: %v %.200q", k, c.GetVerdict(), want, c.GetEnd(), c.GetStderr())
		}
	}
	return nil
}

// kind of submission: its name, verdict, and what it does where n is 70 or more, by language.
type kind struct {
	name          string
	verdict       dsecv1.Verdict
	python, c, sh string
}

var kinds = []kind{
	{"correct", dsecv1.Verdict_VERDICT_ACCEPTED, "pass", ";", ":"},
	{"wrong", dsecv1.Verdict_VERDICT_WRONG_ANSWER, "s += 1", "s++;", "s=$((s+1))"},
	{"slow", dsecv1.Verdict_VERDICT_TIME_LIMIT, "\n  while True: pass", "for(;;);", "while :; do :; done"},
	{"asleep", dsecv1.Verdict_VERDICT_TIME_LIMIT, "__import__('time').sleep(100)", "sleep(100);", "sleep 100"},
	{"greedy", dsecv1.Verdict_VERDICT_MEMORY_LIMIT, "x = b'x' * (1 << 30)", "for(;;){char*p=malloc(1<<20);if(p)memset(p,1,1<<20);}", "head -c 300000000 /dev/zero | tail -n 1 > /dev/null || exit 1"},
	{"crashing", dsecv1.Verdict_VERDICT_RUNTIME_ERROR, "raise ValueError(n)", "*(volatile int*)0=1;", "kill -SEGV $$"},
	{"exiting", dsecv1.Verdict_VERDICT_RUNTIME_ERROR, "raise SystemExit(3)", "exit(3);", "exit 3"},
	{"loud", dsecv1.Verdict_VERDICT_OUTPUT_LIMIT, "\n  while True: print('x' * 1000)", "for(;;)puts(\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\");", "yes"},
	{"forking", dsecv1.Verdict_VERDICT_TIME_LIMIT, "\n  import os\n  while True:\n   try: os.fork()\n   except OSError: pass", "for(;;)fork();", "exec python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'"},
	{"leaving daemons", dsecv1.Verdict_VERDICT_ACCEPTED, "\n  import os, time\n  if os.fork() == 0:\n   os.setsid(); time.sleep(100)", "if(fork()==0){setsid();for(;;)sleep(100);}", "(sleep 100; echo late) &"},
	{"writing", dsecv1.Verdict_VERDICT_OUTPUT_LIMIT, "open('/tmp/x','wb').write(bytes(20 << 20))", "FILE*f=fopen(\"/tmp/x\",\"w\");static char b[1<<20];for(int i=0;i<20;i++)if(fwrite(b,1,sizeof b,f)<sizeof b)exit(1);", "head -c 20000000 /dev/zero > /tmp/x || exit 1"},
	{"killing", dsecv1.Verdict_VERDICT_RUNTIME_ERROR, "\n  import os, signal\n  os.kill(os.getpid(), 9)", "kill(-1,9);kill(getpid(),9);", "kill -9 $$"},
	{"not compiling", dsecv1.Verdict_VERDICT_COMPILE_ERROR, "", "syntax error", ""},
}

// Submissions makes n submissions, each with a source of its own, and what is known about them.
func Submissions(n int) ([]*dsecv1.JudgeRequest, []Want) {
	var cases []*dsecv1.JudgeCase
	for k := range casesEach {
		v := 10*k + 1
		cases = append(cases, &dsecv1.JudgeCase{Name: fmt.Sprint(k), Stdin: []byte(fmt.Sprintln(v)), Expected: []byte(fmt.Sprintln(v * (v + 1) / 2))})
	}
	subs := make([]*dsecv1.JudgeRequest, n)
	want := make([]Want, n)
	for k := range n {
		kd := kinds[0]
		// Half of them are right, as in life.
		if k%2 == 1 {
			kd = kinds[1+(k/2)%(len(kinds)-1)]
		}
		runtime, code := source(&kd, k)
		w := Want{Name: runtime + ", " + kd.name, Good: dsecv1.Verdict_VERDICT_ACCEPTED, Bad: kd.verdict, Whole: kd.verdict}
		memory := int64(32 << 20)
		if kd.name == "forking" {
			memory = 512 << 20 // more than as many as the process limit lets live: its time ends it, not its memory
		}
		subs[k] = &dsecv1.JudgeRequest{Submission: &dsecv1.JudgeSpec{
			Program: &dsecv1.Program{Runtime: runtime, Code: code}, Cases: cases, StopEarly: kd.verdict != dsecv1.Verdict_VERDICT_ACCEPTED && k%4 == 1,
			Limits: &dsecv1.CallLimits{CpuSeconds: 0.25, WallSeconds: 2, MemoryBytes: memory, Pids: 16, OutputBytes: 64 << 10, FileBytes: 8 << 20},
		}}
		want[k] = w
	}
	return subs, want
}

// source writes the program of a kind; number makes it one of its own.
func source(k *kind, number int) (runtime, code string) {
	lang := (number/2 + number/(2*(len(kinds)-1))) % 3 // every kind in every language
	if k.name == "not compiling" {
		lang = 1
	}
	switch lang {
	case 0:
		return "python", fmt.Sprintf("# %d\nn = int(input())\ns = sum(range(n + 1))\nif n >= 70: %s\nprint(s)\n", number, k.python)
	case 1:
		return "c", fmt.Sprintf("/* %d */\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <signal.h>\n#include <unistd.h>\n"+
			"int main(void) {\n  long n, s = 0;\n  if (scanf(\"%%ld\", &n) != 1) return 1;\n  for (long i = 1; i <= n; i++) s += i;\n  if (n >= 70) { %s }\n"+
			"  printf(\"%%ld\\n\", s);\n  return 0;\n}\n", number, k.c)
	}
	return "shell", strings.Join([]string{fmt.Sprintf("# %d", number), "read n", "s=$((n*(n+1)/2))", "if [ $n -ge 70 ]; then", k.sh, "fi", "echo $s", ""}, "\n")
}
