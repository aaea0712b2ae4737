package sandboxtest

import (
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

func (s *suite) background(t *testing.T) {
	b := s.Create(t, nil)
	reader := func() *dsecv1.CommandSpec { return &dsecv1.CommandSpec{Argv: []string{"cat"}, KeepStdinOpen: true} }
	send := func(t *testing.T, id, data string, end bool) {
		t.Helper()
		if _, err := b.N.Commands.SendInput(b.Ctx, &dsecv1.SendInputRequest{SandboxId: b.ID, CommandId: id, Data: []byte(data), Close: end}); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("InputAgain", func(t *testing.T) {
		st := b.Start(&dsecv1.StartCommandRequest{Command: reader()})
		id := st.Next().GetStarted().GetId()
		place := func(offset int64, data string, end bool) error {
			_, err := b.N.Commands.SendInput(b.Ctx, &dsecv1.SendInputRequest{SandboxId: b.ID, CommandId: id, Data: []byte(data), Close: end, Writer: "w", Offset: offset})
			return err
		}
		for _, p := range []struct {
			offset int64
			data   string
		}{{0, "one "}, {0, "one "}, {4, "two "}, {0, "one two "}, {4, "two three"}} {
			if err := place(p.offset, p.data, false); err != nil {
				t.Fatal(err)
			}
		}
		WantCode(t, place(40, "x", false), connect.CodeInvalidArgument, "missing")
		WantCode(t, place(-1, "x", false), connect.CodeInvalidArgument, "offset")
		send(t, id, " and all", false) // without a place it is appended
		if err := place(13, "", true); err != nil {
			t.Fatal(err)
		}
		if text, _ := Text(st.All(), 0); text != "one two three and all" {
			t.Errorf("it read %q", text)
		}
		WantCode(t, place(13, "", true), connect.CodeFailedPrecondition, "exited")
		_, err := b.N.Commands.SendInput(b.Ctx, &dsecv1.SendInputRequest{SandboxId: b.ID, CommandId: id, Offset: 3})
		WantCode(t, err, connect.CodeInvalidArgument, "writer")
	})
	t.Run("InputClosed", func(t *testing.T) {
		id := b.Detach(reader()).Id
		send(t, id, "", true)
		_, err := b.N.Commands.SendInput(b.Ctx, &dsecv1.SendInputRequest{SandboxId: b.ID, CommandId: id, Data: []byte("late")})
		WantCode(t, err, connect.CodeFailedPrecondition) // closed, or exited meanwhile
	})
	t.Run("OutlivesItsClient", func(t *testing.T) {
		st := b.Start(&dsecv1.StartCommandRequest{Command: reader()})
		id := st.Next().GetStarted().GetId()
		send(t, id, "first ", false)
		_, offset := st.Until("first ")
		st.Close() // the client goes away
		send(t, id, "second ", false)
		at := b.Attach(&dsecv1.AttachCommandRequest{CommandId: id, FromOffset: offset})
		if got, _ := at.Until("second "); got != "second " {
			t.Errorf("from offset %d: %q", offset, got)
		}
		send(t, id, "third", true)
		if text, _ := Text(at.All(), 0); text != "third" {
			t.Errorf("rest %q", text)
		}
		events := b.Attach(&dsecv1.AttachCommandRequest{CommandId: id}).All()
		if text, _ := Text(events, 0); text != "first second third" {
			t.Errorf("whole %q", text)
		}
		if first, last := events[0], events[len(events)-1]; first.GetStarted() == nil || last.GetEnded().GetResult().GetExitCode() != 0 {
			t.Errorf("first event %v, last %v", first, last)
		}
	})
	t.Run("List", func(t *testing.T) {
		c := b.Detach(reader())
		list, err := b.N.Commands.ListCommands(b.Ctx, &dsecv1.ListCommandsRequest{SandboxId: b.ID, RunningOnly: true})
		if err != nil || len(list.Commands) != 1 || list.Commands[0].Id != c.Id || list.Commands[0].Result != nil || list.Commands[0].Pid == 0 {
			t.Errorf("running: %v, %v", list, err)
		}
		if got := b.Get().RunningCommands; got != 1 {
			t.Errorf("%d running commands", got)
		}
		events := b.Attach(&dsecv1.AttachCommandRequest{CommandId: c.Id, NoFollow: true}).All()
		if len(events) != 1 || events[0].GetStarted() == nil {
			t.Errorf("without following: %v", events)
		}
		send(t, c.Id, "", true)
		b.Attach(&dsecv1.AttachCommandRequest{CommandId: c.Id}).All()
		page, err := b.N.Commands.ListCommands(b.Ctx, &dsecv1.ListCommandsRequest{SandboxId: b.ID, PageSize: 1})
		if err != nil || len(page.Commands) != 1 || page.NextPageToken == "" {
			t.Fatalf("page: %v, %v", page, err)
		}
		next, err := b.N.Commands.ListCommands(b.Ctx, &dsecv1.ListCommandsRequest{SandboxId: b.ID, PageSize: 1, PageToken: page.NextPageToken})
		if err != nil || len(next.Commands) != 1 || next.Commands[0].Order <= page.Commands[0].Order {
			t.Errorf("next page: %v, %v", next, err)
		}
	})
	t.Run("Signal", func(t *testing.T) {
		c := b.Detach(&dsecv1.CommandSpec{Argv: []string{"sleep", "600"}})
		b.Signal(c.Id, 0, false) // SIGTERM
		b.Attach(&dsecv1.AttachCommandRequest{CommandId: c.Id}).All()
		got := b.Command(c.Id)
		WantEnd(t, got, "killed", byUser)
		if got.Result.Signal != 15 || got.Result.ExitCode != 143 {
			t.Errorf("result %v", got.Result)
		}
	})
	t.Run("IgnoresSIGTERM", func(t *testing.T) {
		script := "ignore 15; echo ready; sleep 600"
		if s.caps.Real {
			script = "trap '' TERM; echo ready; while :; do sleep 1; done"
		}
		st := b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Shell: script}})
		id := st.Next().GetStarted().GetId()
		st.Until("ready")
		b.Signal(id, 15, true)
		b.Signal(id, 9, true)
		events := st.All()
		WantEnd(t, events[len(events)-1].GetEnded(), "killed", byUser)
	})
	t.Run("ServerInTheBackground", func(t *testing.T) {
		s.real(t)
		// It ends with its leader, though a child holds its output open, and the child lives on.
		b.WantShell("sleep 600 & echo $! > /tmp/bg; echo started", "started\n")
		b.WantShell("kill -0 $(cat /tmp/bg) && echo alive", "alive\n")
	})
	t.Run("Unknown", func(t *testing.T) {
		for _, id := range []string{"c999999", "nonsense", "c0", "c01", ""} {
			_, err := b.N.Commands.GetCommand(b.Ctx, &dsecv1.GetCommandRequest{SandboxId: b.ID, CommandId: id})
			WantCode(t, err, connect.CodeNotFound)
		}
	})
}
