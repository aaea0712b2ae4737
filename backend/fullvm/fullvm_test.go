package fullvm_test

import (
	"bytes"
	"context"
	"errors"
	"image/png"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/backend/fullvm"
	"github.com/opendsec/dsec/backend/fullvm/fullvmtest"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/internal/tcptunnel"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/layer/importer"
	"github.com/opendsec/dsec/layer/store/posix"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// importDisk brings a disk into a store as `dsec image import --disk` does.
func importDisk(t testing.TB, store *posix.Store, image []byte, query string) *dsecv1.Layer {
	t.Helper()
	srv := httptest.NewServer(importer.New(store, importer.Options{MinFree: 1}))
	defer srv.Close()
	req, err := http.NewRequest(http.MethodPut, srv.URL+"/v1/layers?format=disk&name=vm"+query, bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	m := &dsecv1.ImportLayerResponse{}
	if err := protojson.Unmarshal([]byte(lines[len(lines)-1]), m); err != nil || m.Layer == nil {
		t.Fatalf("import: %s, %v", b, err)
	}
	return m.Layer
}

// node starts an edge over full VMs of a disk.
func node(t testing.TB, image []byte, query string) *sandboxtest.Node {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	store, err := posix.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	l := importDisk(t, store, image, query)
	if l.GetConfig().GetDisk().GetSizeBytes() != int64(len(image)) {
		t.Errorf("imported: %v", l)
	}
	return sandboxtest.Start(t, sandboxtest.Factory{
		Backend: func(t testing.TB, id sandbox.EdgeID, state string) sandbox.Backend {
			d, err := fullvm.New(context.Background(), fullvm.Config{StateDir: state, Edge: id, Layers: posix.NewNode(store), BootTimeout: 5 * time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Ready(); err != nil {
				_ = d.Close(context.Background())
				t.Skip(err)
			}
			return d
		},
		Layers: []*dsecv1.ResolvedLayer{{Digest: l.Digest, Kind: "base", Name: "vm", Version: "v1"}},
		Limits: &dsecv1.Limits{MemoryBytes: 64 << 20, CpuMillis: 1000, DiskBytes: 4 << 20},
		Config: func(c *edge.Config) { c.CreateTimeout = 5 * time.Minute },
	}, nil)
}

func screens(n *sandboxtest.Node) dsecv1connect.ScreenServiceClient {
	return dsecv1connect.NewScreenServiceClient(n.HTTP, n.URL)
}

// awaitText waits until a screen in text mode shows something.
func awaitText(t *testing.T, b *sandboxtest.Box, want string) string {
	t.Helper()
	var text string
	sandboxtest.Eventually(t, "the screen shows "+want, func() bool {
		s, err := screens(b.N).GetScreen(b.Ctx, &dsecv1.GetScreenRequest{SandboxId: b.ID})
		if err != nil {
			t.Fatal(err)
		}
		text = s.Text
		return strings.Contains(text, want)
	})
	return text
}

func typeText(t *testing.T, b *sandboxtest.Box, text string) {
	t.Helper()
	if _, err := screens(b.N).TypeText(b.Ctx, &dsecv1.TypeTextRequest{SandboxId: b.ID, Text: text}); err != nil {
		t.Fatal(err)
	}
}

func press(t *testing.T, b *sandboxtest.Box, keys ...string) {
	t.Helper()
	if _, err := screens(b.N).PressKeys(b.Ctx, &dsecv1.PressKeysRequest{SandboxId: b.ID, Keys: keys}); err != nil {
		t.Fatal(err)
	}
}

func shot(t *testing.T, b *sandboxtest.Box) []byte {
	t.Helper()
	s, err := screens(b.N).TakeScreenshot(b.Ctx, &dsecv1.TakeScreenshotRequest{SandboxId: b.ID})
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(s.Png))
	if err != nil || img.Bounds().Dx() != int(s.Width) || img.Bounds().Dy() != int(s.Height) {
		t.Fatalf("picture of %d by %d: %v", s.Width, s.Height, err)
	}
	return s.Png
}

// TestMachine drives a machine by its screen and keyboard, through a restart of its edge, to its end.
func TestMachine(t *testing.T) {
	n := node(t, fullvmtest.Echo("as imported"), "")
	b := n.Create(t, nil)
	awaitText(t, b, "ready: as imported")
	before := shot(t, b)
	// Every character that the layout has.
	const text = `the quick (brown) FOX; jumps_over "13" {lazy} dogs: a+b=c-d*e/f\g|h ~!@#$%^& [x] 'y' <z>, 24.680 5,79?` + "`"
	typeText(t, b, text)
	if shown := strings.ReplaceAll(awaitText(t, b, "79?`"), "\n", ""); !strings.Contains(shown, text) {
		t.Errorf("typed %s\nshown %s", text, shown)
	}
	press(t, b, "enter")
	awaitText(t, b, "stored")
	if bytes.Equal(before, shot(t, b)) {
		t.Error("the picture has not changed")
	}
	console, err := n.Backend.(*fullvm.Driver).Console(t.Context(), sandbox.ID(b.ID))
	if err != nil || !strings.Contains(console, text) || !strings.Contains(console, "stored") {
		t.Errorf("the serial port says %q, %v", console, err)
	}

	// What is not there is told from what failed.
	_, err = n.Commands.Exec(b.Ctx, &dsecv1.ExecRequest{SandboxId: b.ID, Command: &dsecv1.CommandSpec{Shell: "true"}})
	sandboxtest.WantCode(t, err, connect.CodeUnimplemented, "no agent")

	n.Restart()
	typeText(t, b, "again")
	awaitText(t, b, "again")
	// Paused, and resumed by whoever looks.
	if _, err := n.Sandboxes.PauseSandbox(b.Ctx, &dsecv1.PauseSandboxRequest{SandboxId: b.ID}); err != nil {
		t.Fatal(err)
	}
	typeText(t, b, " and again")
	awaitText(t, b, "again and again")
	stats, err := n.Sandboxes.GetSandboxStats(b.Ctx, &dsecv1.GetSandboxStatsRequest{SandboxId: b.ID})
	if err != nil || stats.GetStats().GetDiskLimitBytes() != 4<<20 || stats.GetStats().GetDiskBytes() == 0 {
		t.Errorf("statistics %v, %v", stats, err)
	}

	// Another machine of the same disk knows nothing of what the first has stored.
	other := n.Create(t, nil)
	awaitText(t, other, "ready: as imported")
	press(t, other, "ctrl", "p")
	if end := other.AwaitEnd().End; end.Kind != string(sandbox.KindGuestPanicked) || !strings.Contains(end.Evidence, "ready: as imported") {
		t.Errorf("after a panic: %v", end)
	}
	press(t, b, "esc")
	if end := b.AwaitEnd().End; end.Kind != string(sandbox.KindInitKilled) || !strings.Contains(end.Message, "switched off") || end.Blame != dsecv1.Blame_BLAME_TASK {
		t.Errorf("after it was switched off: %v", end)
	}
	if left, _ := filepath.Glob(filepath.Join(n.State, "run/fullvm/s*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestScreenRefused: bad input to a screen is refused with what to do; VNC answers; a killed QEMU is told.
func TestScreenRefused(t *testing.T) {
	n := node(t, fullvmtest.Echo("x"), "")
	b := n.Create(t, nil)
	s := screens(n)
	for name, c := range map[string]struct {
		do   func() error
		want string
	}{
		"a character": {func() error {
			_, err := s.TypeText(b.Ctx, &dsecv1.TypeTextRequest{SandboxId: b.ID, Text: "naïve"})
			return err
		}, "nothing was typed"},
		"no text": {func() error {
			_, err := s.TypeText(b.Ctx, &dsecv1.TypeTextRequest{SandboxId: b.ID})
			return err
		}, "want 1 to"},
		"a pace": {func() error {
			_, err := s.TypeText(b.Ctx, &dsecv1.TypeTextRequest{SandboxId: b.ID, Text: "a", IntervalSeconds: 5})
			return err
		}, "interval_seconds"},
		"a key": {func() error {
			_, err := s.PressKeys(b.Ctx, &dsecv1.PressKeysRequest{SandboxId: b.ID, Keys: []string{"ctrl", "any"}})
			return err
		}, "want names like"},
		"no keys": {func() error {
			_, err := s.PressKeys(b.Ctx, &dsecv1.PressKeysRequest{SandboxId: b.ID})
			return err
		}, "want 1 to"},
		"a place": {func() error {
			_, err := s.MovePointer(b.Ctx, &dsecv1.MovePointerRequest{SandboxId: b.ID, X: 5000})
			return err
		}, "pixels"},
		"half a place": {func() error {
			_, err := s.ClickPointer(b.Ctx, &dsecv1.ClickPointerRequest{SandboxId: b.ID, X: proto.Int32(1)})
			return err
		}, "neither"},
		"a button": {func() error {
			_, err := s.ClickPointer(b.Ctx, &dsecv1.ClickPointerRequest{SandboxId: b.ID, Button: "fourth"})
			return err
		}, "left, middle or right"},
		"clicks": {func() error {
			_, err := s.ClickPointer(b.Ctx, &dsecv1.ClickPointerRequest{SandboxId: b.ID, Count: 11})
			return err
		}, "want 1 to"},
		"steps": {func() error {
			_, err := s.ScrollPointer(b.Ctx, &dsecv1.ScrollPointerRequest{SandboxId: b.ID, Steps: -1000})
			return err
		}, "steps"},
	} {
		t.Run(name, func(t *testing.T) { sandboxtest.WantCode(t, c.do(), connect.CodeInvalidArgument, c.want) })
	}
	// With places that are there.
	if _, err := s.ClickPointer(b.Ctx, &dsecv1.ClickPointerRequest{SandboxId: b.ID, X: proto.Int32(10), Y: proto.Int32(399), Count: 2}); err != nil {
		t.Error(err)
	}
	if _, err := s.ScrollPointer(b.Ctx, &dsecv1.ScrollPointerRequest{SandboxId: b.ID, Steps: 2}); err != nil {
		t.Error(err)
	}

	var dial net.Dialer
	nc, err := dial.DialContext(b.Ctx, "unix", n.Socket)
	if err != nil {
		t.Fatal(err)
	}
	nc, err = tcptunnel.Dial(b.Ctx, nc, tcptunnel.Request{Host: "edge", SandboxID: b.ID, Path: "screen/vnc"})
	if err != nil {
		t.Fatal(err)
	}
	hello := make([]byte, 12)
	if _, err := io.ReadFull(nc, hello); err != nil || !strings.HasPrefix(string(hello), "RFB 003.") {
		t.Errorf("VNC says %q, %v", hello, err)
	}
	nc.Close()

	p, err := n.Backend.(*fullvm.Driver).Process(sandbox.ID(b.ID))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := linux.SignalPID(p, 9); err != nil {
		t.Fatal(err)
	}
	if end := b.AwaitEnd().End; end.Kind != string(sandbox.KindVMMCrashed) || end.Blame != dsecv1.Blame_BLAME_INFRA {
		t.Errorf("after its QEMU was killed: %v", end)
	}
}

// TestNoSystem: a disk with nothing to start is told as that, with what the screen and the firmware said, and leaves
// nothing.
func TestNoSystem(t *testing.T) {
	n := node(t, fullvmtest.Empty(), "")
	resp, err := n.Creator.CreateResolved(sandboxtest.Context(t), n.Request(nil))
	if err != nil {
		t.Fatal(err)
	}
	f := resp.Response.Results[0].GetError().GetFailure()
	if f.GetKind() != string(sandbox.KindBootFailed) || f.GetBlame() != dsecv1.Blame_BLAME_USER || !strings.Contains(f.GetEvidence(), "No bootable device") {
		t.Errorf("got %v", resp.Response.Results[0])
	}
	if left, _ := filepath.Glob(filepath.Join(n.State, "run/fullvm/s*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestSeedRefused: what cannot be a seed disk is refused before anything is made.
func TestSeedRefused(t *testing.T) {
	n := node(t, fullvmtest.Echo("x"), "")
	for want, seed := range map[string]*dsecv1.CloudInit{
		"at most 1048576":   {UserData: make([]byte, 1<<20), NetworkConfig: []byte("x")},
		"leave instance-id": {MetaData: []byte("a: b\ninstance-id : mine\n")},
		"not JSON":          {MetaData: []byte(` {"instance-id": "mine"}`)},
	} {
		_, err := n.Creator.CreateResolved(sandboxtest.Context(t), n.Request(&dsecv1.SandboxSpec{CloudInit: seed}))
		sandboxtest.WantCode(t, err, connect.CodeInvalidArgument, "cloud_init", want)
	}
}

// TestSuccessor: another driver over the same state, as after kill -9 of the edge, finds the machine and what is left of
// others.
func TestSuccessor(t *testing.T) {
	n := node(t, fullvmtest.Echo("x"), "")
	spec := &sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: n.Factory.Layers[0].Digest}},
		Limits: sandbox.Limits{MemoryBytes: 32 << 20, CPUMillis: 1000, DiskBytes: 4 << 20}}
	state, id := t.TempDir(), sandbox.NewEdgeID()
	first := n.Factory.Backend(t, id, state)
	keep, err := first.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	drop, err := first.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(t.Context()); err != nil { // a predecessor that is killed leaves as much behind
		t.Fatal(err)
	}
	second := n.Factory.Backend(t, id, state)
	inst, err := second.Recover(t.Context(), keep.ID(), keep.Handle())
	if err != nil {
		t.Fatal(err)
	}
	swept, err := second.Sweep(t.Context(), func(id sandbox.ID) bool { return id == keep.ID() })
	if err != nil || !slices.Equal(swept, []string{string(drop.ID())}) {
		t.Errorf("swept %q, %v", swept, err)
	}
	if _, _, _, err := inst.(sandbox.Screen).Picture(t.Context()); err != nil {
		t.Error(err)
	}
	if err := inst.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(state, "run/fullvm/*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if _, err := second.Recover(t.Context(), keep.ID(), keep.Handle()); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("recover what is gone: %v", err)
	}
}

// TestRefused: what cannot be a full VM is refused before anything is made, with what to do.
func TestRefused(t *testing.T) {
	n := node(t, fullvmtest.Echo("x"), "")
	store, err := posix.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	files, err := testkit.Import(t.Context(), store, tree.Options{}, func(*tree.Builder) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	uefi := importDisk(t, store, fullvmtest.Echo("x"), "&firmware=uefi")
	mine := n.Factory.Layers[0].Digest
	limits := sandbox.Limits{MemoryBytes: 32 << 20, CPUMillis: 1000, DiskBytes: 4 << 20}
	small := limits
	small.DiskBytes = fullvmtest.DiskSize / 2
	for name, c := range map[string]struct {
		cfg  fullvm.Config
		spec sandbox.Spec
		kind error
		want string
	}{
		"QEMU": {fullvm.Config{QEMU: "no-such-qemu"}, sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: mine}}}, sandbox.ErrUnsupported, "install QEMU"},
		"two":  {fullvm.Config{}, sandbox.Spec{Layers: make([]sandbox.LayerRef, 2)}, sandbox.ErrInvalid, "one disk"},
		"no snapshot": {fullvm.Config{Layers: posix.NewNode(store)}, sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: uefi.Digest}}, Limits: limits,
			Snapshots: []sandbox.SnapshotID{sandbox.NewSnapshotID(sandbox.NewEdgeID())}}, sandbox.ErrNotFound, "snapshot n"},
		"no disk": {fullvm.Config{Layers: posix.NewNode(store)}, sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: string(files)}}, Limits: limits},
			sandbox.ErrInvalid, "--disk"},
		"firmware": {fullvm.Config{Layers: posix.NewNode(store), OVMF: t.TempDir()}, sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: uefi.Digest}}, Limits: limits},
			sandbox.ErrUnsupported, "install ovmf"},
		"small": {fullvm.Config{Layers: posix.NewNode(store)}, sandbox.Spec{Layers: []sandbox.LayerRef{{Digest: uefi.Digest}}, Limits: small},
			sandbox.ErrInvalid, "disk of 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.StateDir, c.cfg.Edge = t.TempDir(), sandbox.NewEdgeID()
			d, err := fullvm.New(t.Context(), c.cfg)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.Create(t.Context(), &c.spec); !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %v that says %q", err, c.kind, c.want)
			}
			if err := d.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if left, _ := filepath.Glob(filepath.Join(c.cfg.StateDir, "run/fullvm/s*")); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}
