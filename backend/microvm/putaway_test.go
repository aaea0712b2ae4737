package microvm_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// TestPutAway: paused machines without QEMU.
func TestPutAway(t *testing.T) {
	slow(t)
	sandboxtest.RunPutAway(t, factory(t))
}

const (
	putAwayState = "DSEC_TEST_PUTAWAY_STATE"
	putAwayEdge  = "DSEC_TEST_PUTAWAY_EDGE"
)

// deaf takes no notice.
type deaf struct{}

func (deaf) Output(string, int64, wire.Stream, []byte) {}
func (deaf) Exited(string, wire.Exit)                  {}
func (deaf) SessionEnded(string, wire.Exit)            {}
func (deaf) Closed(error)                              {}

// TestPutAwayChild is the process that is going to be killed.
func TestPutAwayChild(t *testing.T) {
	state := os.Getenv(putAwayState)
	if state == "" {
		t.Skip("a part of TestPutAwayKilled")
	}
	f := factory(t)
	d := f.Backend(t, sandbox.EdgeID(os.Getenv(putAwayEdge)), state)
	inst, err := d.Create(t.Context(), &sandbox.Spec{Backend: sandbox.BackendMicroVM, Layers: []sandbox.LayerRef{{Digest: f.Layers[0].Digest}},
		Limits: sandbox.Limits{MemoryBytes: 128 << 20, CPUMillis: 1000, Pids: 100, DiskBytes: 16 << 20, ShmBytes: 8 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := inst.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Serve(deaf{})
	if _, err := c.Start(t.Context(), &wire.Start{ID: "c1", Argv: []string{"/bin/sleep", "6000"}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := inst.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := inst.(sandbox.Saver).Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = inst.Connect(t.Context())
	t.Fatalf("nothing has killed it: %v", err)
}

// TestPutAwayKilled kills an edge at each step of putting a machine away and of bringing it back: the next finds it, paused in
// memory or saved, with what ran in it, and nothing else.
func TestPutAwayKilled(t *testing.T) {
	slow(t)
	f := factory(t)
	for _, c := range []struct {
		point string
		saved bool
	}{
		{"microvm/pause_begun", false},
		{"microvm/pause_written", false},
		{"microvm/pause_saved", true},
		{"microvm/pause_loaded", true},
		{"microvm/pause_taken_up", false},
	} {
		t.Run(filepath.Base(c.point), func(t *testing.T) {
			state, node := t.TempDir(), sandbox.NewEdgeID()
			sweepAtEnd(t, f, node, state)
			cmd := exec.Command(os.Args[0], "-test.run", "^TestPutAwayChild$")
			cmd.Env = append(os.Environ(), putAwayState+"="+state, putAwayEdge+"="+string(node), failpoint.EnvVar+"="+c.point+"=kill", "TMPDIR="+t.TempDir())
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("child: %v\n%s", err, out)
			}
			dirs, _ := filepath.Glob(filepath.Join(state, "run/vm/*/record.json"))
			if len(dirs) != 1 {
				t.Fatalf("machines: %q", dirs)
			}
			dir := filepath.Dir(dirs[0])
			id := sandbox.ID(filepath.Base(dir))
			d := f.Backend(t, node, state).(*microvm.Driver)
			defer func() {
				if err := d.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			inst, err := d.Recover(t.Context(), id, []byte(id))
			if err != nil {
				t.Fatal(err)
			}
			if swept, err := d.Sweep(t.Context(), func(have sandbox.ID) bool { return have == id }); err != nil || len(swept) > 0 {
				t.Errorf("swept %q, %v", swept, err)
			}
			if got := inst.(sandbox.Saver).Saved(); got != c.saved {
				t.Errorf("put away: %v, want %v", got, c.saved)
			}
			p, err := d.Process(id)
			if runs := err == nil && !linux.Ended(p); runs == c.saved {
				t.Errorf("its QEMU runs: %v, %v", runs, err)
			}
			if err == nil {
				p.Close()
			}
			conn, err := inst.Connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "saved*")); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			wantCommand(t, conn)
			if err := inst.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := inst.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
			if left, _ := filepath.Glob(filepath.Join(state, "run/vm/s*")); len(left) > 0 { // of machines: the driver's own files stay
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// wantCommand looks that the command of before runs.
func wantCommand(t *testing.T, conn *aether.Conn) {
	t.Helper()
	conn.Serve(deaf{})
	defer conn.Close()
	list, err := conn.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != "c1" || list[0].Ended {
		t.Errorf("what runs: %v, %v", list, err)
	}
}

// TestPutAwayDamaged: what cannot be brought back is refused, with the reason, and stays put away; it can be ended.
func TestPutAwayDamaged(t *testing.T) {
	slow(t)
	n := sandboxtest.Start(t, factory(t), sandboxtest.Keeping(1))
	b := n.Create(t, nil)
	b.WantShell("echo up", "up\n")
	b.Pause()
	b.AwaitSaved()
	ram := filepath.Join(n.State, "driver/run/vm", b.ID, "saved/ram")
	flipAt := func() {
		t.Helper()
		all, err := os.ReadFile(ram)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(ram, flip(5000)(all), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	flipAt()
	_, err := n.Sandboxes.ResumeSandbox(b.Ctx, &dsecv1.ResumeSandboxRequest{SandboxId: b.ID})
	if err == nil || !strings.Contains(err.Error(), "its memory is another") {
		t.Errorf("with its memory changed: %v", err)
	}
	b.AwaitSaved()
	flipAt()
	note := filepath.Join(filepath.Dir(ram), "template.json")
	if err := os.Rename(note, note+"-away"); err != nil {
		t.Fatal(err)
	}
	_, err = n.Sandboxes.ResumeSandbox(b.Ctx, &dsecv1.ResumeSandboxRequest{SandboxId: b.ID})
	if connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "can only be stopped") {
		t.Errorf("with its note gone: %v", err)
	}
	if err := os.Rename(note+"-away", note); err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(filepath.Dir(filepath.Dir(ram)), "record.json.new")
	if err := os.Symlink("/dev/full", next); err != nil {
		t.Fatal(err)
	}
	_, err = n.Sandboxes.ResumeSandbox(b.Ctx, &dsecv1.ResumeSandboxRequest{SandboxId: b.ID})
	if err := os.Remove(next); err != nil {
		t.Fatal(err)
	}
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "make room") || strings.Contains(err.Error(), "hub 0") {
		t.Errorf("without room: %v", err)
	}
	b.AwaitSaved()
	b.WantShell("echo still here", "still here\n")
	b.Pause()
	b.AwaitSaved()
	b.Stop()
	if left, _ := filepath.Glob(filepath.Join(n.State, "driver/run/vm", b.ID, "*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
