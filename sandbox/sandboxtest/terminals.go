package sandboxtest

import (
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

func (s *suite) terminals(t *testing.T) {
	if !s.caps.Terminal {
		t.Skip("the driver has no terminals")
	}
	b := s.Create(t, nil)
	st := b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{
		Argv: []string{"bash", "--norc", "--noprofile"}, Terminal: &dsecv1.TerminalSize{Columns: 91, Rows: 33}, KeepStdinOpen: true,
		Env: map[string]string{"PS1": "ready> ", "TERM": "dumb"},
	}})
	id := st.Next().GetStarted().GetId()
	send := func(line string) {
		t.Helper()
		if _, err := b.N.Commands.SendInput(b.Ctx, &dsecv1.SendInputRequest{SandboxId: b.ID, CommandId: id, Data: []byte(line)}); err != nil {
			t.Fatal(err)
		}
	}
	st.Until("ready> ")
	send("stty size; tty\n")
	st.Until("33 91\r\n/dev/pts/")
	if _, err := b.N.Commands.ResizeTerminal(b.Ctx, &dsecv1.ResizeTerminalRequest{SandboxId: b.ID, CommandId: id, Size: &dsecv1.TerminalSize{Columns: 120, Rows: 40}}); err != nil {
		t.Fatal(err)
	}
	send("stty size\n")
	st.Until("40 120")
	send("sh -c 'echo is\"\"on; exec sleep 600'\n") // what is echoed does not hold the word
	st.Until("ison")
	send("\x03") // interrupts the foreground job, not the shell
	send("echo got $?\n")
	st.Until("got 130")
	send("exit 7\n")
	events := st.All()
	if got := events[len(events)-1].GetEnded().GetResult().GetExitCode(); got != 7 {
		t.Errorf("exit %d", got)
	}
	_, err := b.N.Commands.ResizeTerminal(b.Ctx, &dsecv1.ResizeTerminalRequest{SandboxId: b.ID, CommandId: id, Size: &dsecv1.TerminalSize{}})
	WantCode(t, err, connect.CodeInvalidArgument)
}
