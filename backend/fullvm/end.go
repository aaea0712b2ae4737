package fullvm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/opendsec/dsec/backend/microvm/qmp"
	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/sandbox"
)

// maxEvidence bounds what a failure tells of each source, bytes; all together have 4 KiB.
const maxEvidence = 1800

// evidenceWait bounds how long QEMU may take to hand out what was said.
const evidenceWait = 2 * time.Second

// heard is called with each of the monitor's events.
func (i *instance) heard(e qmp.Event) {
	switch e.Name {
	case "SHUTDOWN", "GUEST_PANICKED", "STOP":
		go i.checkOver() // it asks the monitor, whose reader this is
	case "VSERPORT_CHANGE":
		go i.checkAgent()
	}
}

func (i *instance) checkOver() {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	if status, err := i.status(ctx); err == nil && qemu.Over(status) {
		i.stopped(ctx)
	}
}

// status is QEMU's word for what the machine does.
func (i *instance) status(ctx context.Context) (string, error) {
	return qemu.Status(ctx, monitor{i})
}

// stopped is called when the machine, not QEMU, has ended.
func (i *instance) stopped(ctx context.Context) {
	status, _ := i.status(ctx)
	var f *sandbox.Failure
	switch status {
	case "guest-panicked":
		f = sandbox.NewFailure(sandbox.KindGuestPanicked, "the system of the full VM panicked")
	case "io-error": // the one error of its disk that stops a machine: there is no room for what it writes
		f = sandbox.NewFailure(sandbox.KindStoreFault, "the node has no room for what the full VM writes")
	case "internal-error":
		f = sandbox.NewFailure(sandbox.KindVMMCrashed, "QEMU stopped the full VM: %s", status)
	default:
		f = sandbox.NewFailure(sandbox.KindInitKilled, "the full VM was switched off from inside")
	}
	f.Evidence = i.evidence()
	i.finish(f)
}

// exited is called when QEMU has ended.
func (i *instance) exited() {
	i.mu.Lock()
	p := i.pidfd
	i.mu.Unlock()
	f := sandbox.NewFailure(sandbox.KindVMMCrashed, "QEMU of the full VM ended%s", qemu.HowEnded(p))
	if n, err := i.groups.OOMKills(); err == nil && n > 0 {
		f.Message += ": it was killed for its memory"
	}
	f.Evidence = i.said()
	i.finish(f)
}

// finish marks the end; the first reason stays. After Destroy there is none.
func (i *instance) finish(f *sandbox.Failure) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return
	}
	i.ended = true
	if !i.destroyed {
		i.end = f
	}
	close(i.done)
}

// firmware is what the firmware has said, its first 64 KiB.
func (i *instance) firmware(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, evidenceWait)
	defer cancel()
	i.logMu.Lock()
	defer i.logMu.Unlock()
	if room := consoleSize - len(i.fw); room > 0 {
		i.fw = append(i.fw, i.drain(ctx, "firmware", room)...)
	}
	return string(i.fw)
}

// drain reads a ring of QEMU's, which forgets what it hands out.
func (i *instance) drain(ctx context.Context, device string, size int) string {
	var tail string
	if err := i.query(ctx, "ringbuf-read", map[string]any{"device": device, "size": size}, &tail); err != nil {
		return ""
	}
	return strings.ReplaceAll(tail, "\r", "")
}

// evidence is what is known of a machine that did not do as it should: screen, console, firmware.
func (i *instance) evidence() string {
	ctx, cancel := context.WithTimeout(context.Background(), 3*evidenceWait)
	defer cancel()
	var parts []string
	add := func(what, said string, most int) {
		if said = lastBytes(said, most); said != "" {
			parts = append(parts, what+":\n"+said)
		}
	}
	text, _ := i.ScreenText(ctx)
	add("screen", text, maxEvidence)
	add("console", i.drain(ctx, "console", consoleSize), maxEvidence)
	add("firmware", i.firmware(ctx), maxEvidence/4)
	if len(parts) == 0 {
		return i.said()
	}
	return strings.Join(parts, "\n")
}

// Console returns what the machine said on its serial port since it was asked last, at most its last 64 KiB.
func (d *Driver) Console(ctx context.Context, id sandbox.ID) (string, error) {
	d.mu.Lock()
	i := d.instances[id]
	d.mu.Unlock()
	if i == nil {
		return "", fmt.Errorf("full VM %s: %w", id, sandbox.ErrNotFound)
	}
	var tail string
	err := i.query(ctx, "ringbuf-read", map[string]any{"device": "console", "size": consoleSize}, &tail)
	return tail, err
}

// said is what QEMU itself said last.
func (i *instance) said() string { return lastBytes(i.words.Read(), maxEvidence) }

// bootFailure makes the error of a machine that did not come up one that says what it showed.
func (i *instance) bootFailure(err error) error {
	i.mu.Lock()
	ended := i.end
	i.mu.Unlock()
	var f *sandbox.Failure
	if ended == nil && (errors.As(err, &f) || errors.Is(err, sandbox.ErrInvalid) || errors.Is(err, sandbox.ErrFailedPrecondition) ||
		errors.Is(err, context.Canceled)) {
		return err
	}
	f = sandbox.NewFailure(sandbox.KindBootFailed, "the full VM did not start: %v", err)
	switch {
	case ended != nil:
		f.Message, f.Evidence = fmt.Sprintf("the full VM did not start: %s", ended.Message), ended.Evidence
		return f
	case errors.Is(err, errNoAgentCame):
		f.Message = "the full VM did not start as its disk promises: " + err.Error()
	case errors.Is(err, errNoSystem):
		f.Blame = sandbox.BlameUser // no other node would find something on this disk
	case errors.Is(err, context.DeadlineExceeded):
		f.Message = fmt.Sprintf("the firmware of the full VM had started nothing within %v", i.d.cfg.BootTimeout)
	}
	f.Evidence = i.evidence()
	return f
}

func lastBytes(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		s = s[len(s)-n:]
	}
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "?")
}
