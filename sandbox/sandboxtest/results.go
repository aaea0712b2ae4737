package sandboxtest

import (
	"testing"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

const (
	byTask = dsecv1.Blame_BLAME_TASK
	byUser = dsecv1.Blame_BLAME_USER
)

// results: every end of a command says what it was and whose doing.
func (s *suite) results(t *testing.T) {
	b := s.Create(t, &dsecv1.SandboxSpec{Limits: s.smallDisk()})
	t.Run("Exited", func(t *testing.T) {
		r := b.Want(&dsecv1.CommandSpec{Shell: "exit 42"}, 42, "")
		WantEnd(t, r.Command, "exited", byTask)
		if r.Command.Result.Signal != 0 || r.Command.EndedAt.AsTime().Before(r.Command.StartedAt.AsTime()) {
			t.Errorf("command %v", r.Command)
		}
	})
	t.Run("Signalled", func(t *testing.T) {
		r := b.Want(&dsecv1.CommandSpec{Shell: "kill -15 $$; sleep 60"}, 143, "")
		WantEnd(t, r.Command, "signalled", byTask)
		if r.Command.Result.Signal != 15 {
			t.Errorf("signal %d", r.Command.Result.Signal)
		}
	})
	t.Run("NoProgram", func(t *testing.T) {
		r := b.Want(&dsecv1.CommandSpec{Argv: []string{"no-such-program"}}, 127, "")
		WantEnd(t, r.Command, "cannot_start", byUser)
		b.Want(&dsecv1.CommandSpec{Shell: "no-such-program"}, 127, "")
	})
	t.Run("NotExecutable", func(t *testing.T) {
		s.real(t)
		WantEnd(t, b.Want(&dsecv1.CommandSpec{Argv: []string{"/etc/passwd"}}, 126, "").Command, "cannot_start", byUser)
	})
	t.Run("NoUser", func(t *testing.T) {
		WantEnd(t, b.Want(&dsecv1.CommandSpec{Shell: "true", User: "no-such-user"}, 126, "").Command, "cannot_start", byUser)
	})
	t.Run("NoCwd", func(t *testing.T) {
		WantEnd(t, b.Want(&dsecv1.CommandSpec{Shell: "true", Cwd: "/no/such/directory"}, 126, "").Command, "cannot_start", byUser)
	})
	t.Run("TimedOut", func(t *testing.T) {
		var r *dsecv1.ExecResponse
		for limit := 0.2; limit < 120 && (r == nil || len(r.Stdout) == 0); limit *= 4 { // a slow machine may not have begun
			r = b.Exec(&dsecv1.CommandSpec{Shell: "echo begun; sleep 600", TimeoutSeconds: proto.Float64(limit)})
			WantEnd(t, r.Command, "timed_out", byTask)
		}
		if string(r.Stdout) != "begun\n" || r.Command.Result.ExitCode != 137 {
			t.Errorf("stdout %q, exit %d", r.Stdout, r.Command.Result.ExitCode)
		}
	})
	t.Run("TimeoutKillsTheTree", func(t *testing.T) {
		s.real(t)
		// The child leaves its session and ignores what can be ignored.
		script := `setsid sh -c "trap '' TERM HUP INT; echo \$\$ > /tmp/child; while :; do sleep 1; done" & while [ ! -s /tmp/child ]; do sleep 0.01; done; wait`
		for limit, begun := 1.0, ""; limit < 120 && begun == ""; limit *= 4 {
			r := b.Exec(&dsecv1.CommandSpec{Shell: script, TimeoutSeconds: proto.Float64(limit)})
			WantEnd(t, r.Command, "timed_out", byTask)
			begun = string(b.Shell("cat /tmp/child 2>/dev/null").Stdout)
		}
		b.WantShell("kill -0 $(cat /tmp/child) 2>/dev/null || echo gone", "gone\n")
	})
	t.Run("OOMKilled", func(t *testing.T) {
		s.real(t)
		r := b.Shell("tail /dev/zero")
		WantEnd(t, r.Command, "oom_killed", byTask)
		if r.Command.Result.OomKills < 1 {
			t.Errorf("result %v", r.Command.Result)
		}
		b.WantShell("echo still here", "still here\n")
	})
	t.Run("DiskFull", func(t *testing.T) {
		script := "fill"
		if s.caps.Real {
			if !s.caps.DiskQuota {
				t.Skip("the driver limits no disk")
			}
			script = "dd if=/dev/zero of=/var/tmp/big bs=1M count=100000 2>/dev/null"
		}
		WantEnd(t, b.Shell("exit 2").Command, "exited", byTask)
		WantEnd(t, b.Shell(script).Command, "disk_full", byTask)
		// It is still full. Who fails for another reason is not said to fail for that; who says that it is for that is.
		WantEnd(t, b.Shell("exit 3").Command, "exited", byTask)
		WantEnd(t, b.Shell("echo write error: No space left on device; exit 1").Command, "disk_full", byTask)
		WantEnd(t, b.Shell("echo No space left on device").Command, "exited", byTask)
		if s.caps.Real {
			WantEnd(t, b.Shell("dd if=/dev/zero of=/var/tmp/more bs=1M count=100000").Command, "disk_full", byTask)
			WantEnd(t, b.Shell("kill -BUS $$").Command, "disk_full", byTask)
			b.WantShell("rm -f /var/tmp/more", "")
			b.WantShell("rm /var/tmp/big; echo room > /var/tmp/small; cat /var/tmp/small", "room\n")
		}
	})
}

// smallDisk is a disk that is soon full, and a memory that is too.
func (s *suite) smallDisk() *dsecv1.Limits {
	l := &dsecv1.Limits{}
	if s.Factory.Limits != nil {
		l = proto.Clone(s.Factory.Limits).(*dsecv1.Limits)
	}
	l.DiskBytes, l.MemoryBytes = max(64<<20, s.Factory.MinDisk), 128<<20
	return l
}
