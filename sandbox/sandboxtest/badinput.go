package sandboxtest

import (
	"bytes"
	"math"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// badInput: each refusal has its code and says what is wrong, and nothing is made.
func (s *suite) badInput(t *testing.T) {
	live := func() int {
		list, err := s.Sandboxes.ListSandboxes(Context(t), &dsecv1.ListSandboxesRequest{PageSize: 1000})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Sandboxes)
	}
	before := live()
	long := strings.Repeat("x", 300)
	for name, c := range map[string]struct {
		spec *dsecv1.SandboxSpec
		code connect.Code
		says []string
	}{
		"NegativeTTL":   {&dsecv1.SandboxSpec{TtlSeconds: proto.Float64(-1)}, connect.CodeInvalidArgument, []string{"ttl_seconds", "-1"}},
		"ZeroTTL":       {&dsecv1.SandboxSpec{TtlSeconds: proto.Float64(0)}, connect.CodeInvalidArgument, []string{"ttl_seconds"}},
		"TTLNaN":        {&dsecv1.SandboxSpec{TtlSeconds: proto.Float64(math.NaN())}, connect.CodeInvalidArgument, []string{"ttl_seconds"}},
		"NegativeIdle":  {&dsecv1.SandboxSpec{IdleTimeoutSeconds: proto.Float64(-3)}, connect.CodeInvalidArgument, []string{"idle_timeout_seconds"}},
		"ZeroPaused":    {&dsecv1.SandboxSpec{PausedSeconds: proto.Float64(0)}, connect.CodeInvalidArgument, []string{"paused_seconds"}},
		"OnTimeout":     {&dsecv1.SandboxSpec{OnTimeout: 9}, connect.CodeInvalidArgument, []string{"on_timeout"}},
		"CreateTimeout": {&dsecv1.SandboxSpec{CreateTimeoutSeconds: proto.Float64(0)}, connect.CodeInvalidArgument, []string{"create_timeout_seconds"}},
		"Memory":        {&dsecv1.SandboxSpec{Limits: &dsecv1.Limits{MemoryBytes: 1 << 50}}, connect.CodeInvalidArgument, []string{"memory_bytes", "on this node"}},
		"NegativePids":  {&dsecv1.SandboxSpec{Limits: &dsecv1.Limits{Pids: -1}}, connect.CodeInvalidArgument, []string{"pids"}},
		"CPU":           {&dsecv1.SandboxSpec{Limits: &dsecv1.Limits{CpuMillis: 1 << 40}}, connect.CodeInvalidArgument, []string{"cpu_millis"}},
		"Shm":           {&dsecv1.SandboxSpec{Limits: &dsecv1.Limits{MemoryBytes: 64 << 20, ShmBytes: 63 << 20}}, connect.CodeInvalidArgument, []string{"shm_bytes", "half"}},
		"Backend":       {&dsecv1.SandboxSpec{Backend: dsecv1.Backend_BACKEND_FNCALL}, connect.CodeUnimplemented, []string{"fncall"}},
		"Network":       {&dsecv1.SandboxSpec{NetworkRules: []*dsecv1.NetworkRule{{Target: "203.0.113.9/24", Allow: true}}}, connect.CodeInvalidArgument, []string{"203.0.113.9/24", "203.0.113.0/24"}},
		"Hostname":      {&dsecv1.SandboxSpec{Hostname: "no spaces"}, connect.CodeInvalidArgument, []string{"hostname"}},
		"Label":         {&dsecv1.SandboxSpec{Labels: map[string]string{long: "x"}}, connect.CodeInvalidArgument, []string{"label"}},
		"EnvName":       {&dsecv1.SandboxSpec{Env: map[string]string{"A=B": "x"}}, connect.CodeInvalidArgument, []string{"environment variable"}},
		"EnvValue":      {&dsecv1.SandboxSpec{Secrets: map[string]string{"KEY": strings.Repeat("s3cr3t", 30000)}}, connect.CodeInvalidArgument, []string{"KEY", "kernel"}},
		"EnvTotal":      {&dsecv1.SandboxSpec{Env: manyVars(20, 100_000)}, connect.CodeInvalidArgument, []string{"environment", "1048576"}},
		"Workdir":       {&dsecv1.SandboxSpec{Workdir: "relative"}, connect.CodeInvalidArgument, []string{"workdir"}},
		"User":          {&dsecv1.SandboxSpec{User: "a/b"}, connect.CodeInvalidArgument, []string{"user"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Creator.CreateResolved(Context(t), s.Request(c.spec))
			WantCode(t, err, c.code, c.says...)
			if err != nil && strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("the error shows a secret: %.200s", err)
			}
		})
	}
	t.Run("Count", func(t *testing.T) {
		req := s.Request(nil)
		req.Create.Count = 1001
		_, err := s.Creator.CreateResolved(Context(t), req)
		WantCode(t, err, connect.CodeInvalidArgument, "1000")
	})
	t.Run("CreateOnAnEdge", func(t *testing.T) {
		_, err := s.Sandboxes.CreateSandbox(Context(t), &dsecv1.CreateSandboxRequest{})
		WantCode(t, err, connect.CodeUnimplemented)
	})
	t.Run("EmptySelector", func(t *testing.T) {
		_, err := s.Sandboxes.StopSandboxes(Context(t), &dsecv1.StopSandboxesRequest{})
		WantCode(t, err, connect.CodeInvalidArgument, "label")
	})
	t.Run("UnknownSandbox", func(t *testing.T) {
		_, err := s.Sandboxes.GetSandbox(Context(t), &dsecv1.GetSandboxRequest{SandboxId: "stestaaaaaaaaaaaaaaa"})
		WantCode(t, err, connect.CodeNotFound)
		_, err = s.Sandboxes.GetSandbox(Context(t), &dsecv1.GetSandboxRequest{SandboxId: "../../etc"})
		WantCode(t, err, connect.CodeInvalidArgument)
	})
	if after := live(); after != before {
		t.Errorf("%d sandboxes before, %d after", before, after)
	}
	s.badCommands(t)
}

func manyVars(n, size int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m["VAR"+string(rune('A'+i))] = strings.Repeat("v", size)
	}
	return m
}

func (s *suite) badCommands(t *testing.T) {
	b := s.Create(t, nil)
	for name, c := range map[string]struct {
		spec *dsecv1.CommandSpec
		says []string
	}{
		"Nothing":   {&dsecv1.CommandSpec{}, []string{"argv or shell"}},
		"Both":      {&dsecv1.CommandSpec{Argv: []string{"true"}, Shell: "true"}, []string{"not both"}},
		"NUL":       {&dsecv1.CommandSpec{Argv: []string{"echo", "a\x00b"}}, []string{"NUL"}},
		"Timeout":   {&dsecv1.CommandSpec{Shell: "true", TimeoutSeconds: proto.Float64(-1)}, []string{"timeout_seconds"}},
		"LongWord":  {&dsecv1.CommandSpec{Argv: []string{"echo", strings.Repeat("x", 200_000)}}, []string{"stdin or a file"}},
		"LongShell": {&dsecv1.CommandSpec{Shell: "true " + strings.Repeat("x", 200_000)}, []string{"stdin or a file"}},
		"ManyWords": {&dsecv1.CommandSpec{Argv: append([]string{"echo"}, bigWords(30)...)}, []string{"stdin or a file"}},
		"Env":       {&dsecv1.CommandSpec{Shell: "true", Env: map[string]string{"": "x"}}, []string{"environment variable"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: c.spec})
			WantCode(t, err, connect.CodeInvalidArgument, c.says...)
		})
	}
	t.Run("ManyWordsThatFit", func(t *testing.T) {
		// Just below the kernel's bound: what is accepted must run.
		words := bigWords(15)
		r := b.Exec(&dsecv1.CommandSpec{Argv: append([]string{"echo"}, words...)})
		if r.Command.Result.ExitCode != 0 || r.Command.Result.OutputBytes != int64(15*100_001) {
			t.Errorf("result %v", r.Command.Result)
		}
	})
	t.Run("ArgumentsOf200MB", func(t *testing.T) {
		body := append([]byte(`{"sandboxId":"`+b.ID+`","command":{"argv":["echo","`), bytes.Repeat([]byte("x"), 200<<20)...)
		body = append(body, `"]}}`...)
		resp, err := s.HTTP.Post(s.URL+"/dsec.v1.CommandService/Exec", "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var answer bytes.Buffer
		_, _ = answer.ReadFrom(resp.Body)
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(answer.String(), "arguments and environment") {
			t.Errorf("%d %.300s", resp.StatusCode, answer.String())
		}
	})
	t.Run("InvalidUTF8", func(t *testing.T) {
		body := "{\"sandboxId\":\"" + b.ID + "\",\"path\":\"/\xff\"}"
		resp, err := s.HTTP.Post(s.URL+"/dsec.v1.FileService/StatFile", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("status %d", resp.StatusCode)
		}
	})
	b.WantShell("echo unharmed", "unharmed\n")
}

func bigWords(n int) []string {
	words := make([]string, n)
	for i := range words {
		words[i] = strings.Repeat("w", 100_000)
	}
	return words
}
