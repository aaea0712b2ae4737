package sandboxtest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge"
)

// Keeping makes an edge put paused sandboxes away after d; to be given to Start.
func Keeping(d time.Duration) func(*edge.Config) {
	return func(c *edge.Config) { c.PauseKeepsMemory = d }
}

// Pause pauses the sandbox.
func (b *Box) Pause() {
	b.T.Helper()
	if _, err := b.N.Sandboxes.PauseSandbox(b.Ctx, &dsecv1.PauseSandboxRequest{SandboxId: b.ID}); err != nil {
		b.T.Fatalf("pause: %v", err)
	}
}

// AwaitSaved waits until a paused sandbox is put away.
func (b *Box) AwaitSaved() {
	b.T.Helper()
	Eventually(b.T, "put away", func() bool {
		got := b.Get()
		if got.State != dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
			b.T.Fatalf("not paused: %v", got)
		}
		return got.Saved
	})
}

// putAway: a paused sandbox whose memory is on disk is the same one when it goes on, with all that ran in it.
func (s *suite) putAway(t *testing.T) {
	if !s.caps.Saves {
		t.Skip("the driver does not put paused sandboxes away")
	}
	RunPutAway(t, s.Factory)
}

// RunPutAway runs the part of the suite that is about sandboxes whose memory is on disk while they are paused.
func RunPutAway(t *testing.T, f Factory) {
	n := Start(t, f, Keeping(time.Nanosecond))
	s := &suite{Node: n, caps: n.Backend.Capabilities()}
	b := n.Create(t, &dsecv1.SandboxSpec{TtlSeconds: proto.Float64(3600)})
	script := "count 300 0.01"
	if s.caps.Real {
		script = "i=1; while [ $i -le 300 ]; do echo $i; i=$((i+1)); sleep 0.01; done"
	}
	st := b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Shell: script}})
	counter := st.Next().GetStarted().GetId()
	got, _ := st.Until("20\n")
	reader := b.Detach(&dsecv1.CommandSpec{Argv: []string{"cat"}, KeepStdinOpen: true}).Id
	session := b.Session()
	b.Exec(&dsecv1.CommandSpec{Shell: "cd /tmp", SessionId: session})
	b.Pause()
	b.AwaitSaved()
	stats := func() *dsecv1.SandboxStats {
		t.Helper()
		resp, err := n.Sandboxes.GetSandboxStats(b.Ctx, &dsecv1.GetSandboxStatsRequest{SandboxId: b.ID})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Stats
	}
	if st := stats(); s.caps.Real && (st.SavedBytes == 0 || st.MemoryBytes != 0) {
		t.Errorf("while it is put away: %v", st)
	}
	n.Restart()
	st.Close()
	if now := b.Get(); now.State != dsecv1.SandboxState_SANDBOX_STATE_PAUSED || !now.Saved || now.RunningCommands != 2 || now.ExpiresAt != nil {
		t.Errorf("after a restart: %v", now)
	}
	b.Want(&dsecv1.CommandSpec{Shell: "pwd", SessionId: session}, 0, "/tmp\n")
	if now := b.Get(); now.State != dsecv1.SandboxState_SANDBOX_STATE_RUNNING || now.Saved || stats().SavedBytes != 0 {
		t.Errorf("after a request: %v", now)
	}
	if s.caps.Real {
		before := time.Now().Unix()
		if now, err := strconv.ParseInt(strings.TrimSpace(string(b.Shell("date +%s").Stdout)), 10, 64); err != nil || now < before || now > time.Now().Unix() {
			t.Errorf("its clock says %d, %v; it is between %d and %d", now, err, before, time.Now().Unix())
		}
	}
	if _, err := n.Commands.SendInput(b.Ctx, &dsecv1.SendInputRequest{SandboxId: b.ID, CommandId: reader, Writer: "w", Data: []byte("went on"), Close: true}); err != nil {
		t.Fatal(err)
	}
	if text, _ := Text(b.Attach(&dsecv1.AttachCommandRequest{CommandId: reader}).All(), 0); text != "went on" {
		t.Errorf("input after it: %q", text)
	}
	var want strings.Builder
	for i := 1; i <= 300; i++ {
		fmt.Fprintln(&want, i)
	}
	if text, cut := Text(b.Attach(&dsecv1.AttachCommandRequest{CommandId: counter}).All(), 0); text != want.String() || cut != 0 || !strings.HasPrefix(text, got) {
		t.Errorf("the record holds %d bytes, %d cut; want %d", len(text), cut, want.Len())
	}
	b.Pause()
	b.AwaitSaved()
	if s.caps.Snapshot && s.caps.Memory { // of one that is put away, which stays paused
		child := b.fork(&dsecv1.ForkSandboxRequest{Count: 1})[0]
		child.WantShell("echo a copy", "a copy\n")
		child.Stop()
		b.AwaitSaved()
	}
	for range 2 {
		if _, err := n.Sandboxes.ResumeSandbox(b.Ctx, &dsecv1.ResumeSandboxRequest{SandboxId: b.ID}); err != nil {
			t.Fatal(err)
		}
	}
	b.WantShell("echo up", "up\n")
	var types []string
	for _, ev := range b.Events(0) {
		types = append(types, ev.Type)
	}
	for _, want := range []string{"saved", "restored"} {
		if !slices.Contains(types, want) {
			t.Errorf("events %v, want %s", types, want)
		}
	}
	b.Pause()
	b.AwaitSaved()
	b.Stop()
}
