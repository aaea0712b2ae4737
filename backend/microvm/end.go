package microvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/backend/microvm/qmp"
	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/guest/machine"
	"github.com/opendsec/dsec/sandbox"
)

// maxEvidence bounds what a failure tells of a console, bytes.
const maxEvidence = 4 << 10

// consoleWait bounds how long QEMU may take to hand out the console.
const consoleWait = 2 * time.Second

// panicLine is how the kernel begins its last message.
const panicLine = "Kernel panic - not syncing"

// heard is called with each of the monitor's events.
func (i *instance) heard(e qmp.Event) {
	switch e.Name { // they ask the monitor, whose reader this is
	case "SHUTDOWN":
		go i.stopped(context.Background())
	case "STOP":
		go i.checkOver()
	}
}

// checkOver looks whether a machine that stands still has ended.
func (i *instance) checkOver() {
	if status, err := i.status(context.Background()); err == nil && qemu.Over(status) {
		i.stopped(context.Background())
	}
}

// status is QEMU's word for what the machine does.
func (i *instance) status(ctx context.Context) (string, error) {
	return qemu.Status(ctx, monitor{i})
}

// stopped is called when the machine, not QEMU, has ended.
func (i *instance) stopped(ctx context.Context) {
	tail := i.console(ctx)
	var f *sandbox.Failure
	status, _ := i.status(ctx)
	switch at := strings.LastIndex(tail, panicLine); {
	case status == "io-error": // the one error of its disk that stops a machine
		f = sandbox.NewFailure(sandbox.KindStoreFault, "the node has no room for what the sandbox's machine writes")
	case status == "internal-error":
		f = sandbox.NewFailure(sandbox.KindVMMCrashed, "QEMU stopped the sandbox's machine: %s", status)
	case at >= 0:
		line, _, _ := strings.Cut(tail[at:], "\n")
		f = sandbox.NewFailure(sandbox.KindGuestPanicked, "the kernel of the sandbox's machine panicked: %.200s", strings.TrimSpace(line))
	case strings.Contains(tail, machine.Ended):
		f = sandbox.NewFailure(sandbox.KindInitKilled, "dsec-init of the sandbox ended; its machine ended with it")
	default:
		f = sandbox.NewFailure(sandbox.KindInitKilled, "the sandbox's machine switched itself off")
	}
	f.Evidence = lastBytes(tail, maxEvidence)
	i.finish(f)
}

// exited is called when QEMU has ended.
func (i *instance) exited(p *os.File) {
	i.mu.Lock()
	other := i.saved || i.pidfd != p // put away, and the process one before
	i.mu.Unlock()
	if other {
		return
	}
	f := i.crash(p)
	if n, err := i.groups.OOMKills(); err == nil && n > 0 {
		f.Message += ": it was killed for its memory"
	}
	f.Evidence = i.said()
	i.finish(f)
}

// crash says why a QEMU is gone. Where layers are its memory, a page that the node cannot give ends it, which has no other way to
// tell of it: that is the layer's file, which was cut off or cannot be read, not QEMU.
func (i *instance) crash(p *os.File) *sandbox.Failure {
	how := qemu.HowEnded(p)
	if slices.Contains(i.limits.Mapped, true) && qemu.EndedBy(p) == syscall.SIGBUS {
		return sandbox.NewFailure(sandbox.KindStoreFault,
			"a page of a layer that the sandbox's machine has as its memory could not be had from its file; QEMU ended%s: look with dsec env verify", how)
	}
	return sandbox.NewFailure(sandbox.KindVMMCrashed, "QEMU of the sandbox's machine ended%s", how)
}

// finish marks the end; the first reason stays. After Destroy there is none.
func (i *instance) finish(f *sandbox.Failure) {
	i.mu.Lock()
	if i.ended {
		i.mu.Unlock()
		return
	}
	i.ended = true
	if !i.destroyed {
		i.end = f
	}
	c := i.channel
	close(i.done)
	i.mu.Unlock()
	if c != nil {
		c.Close() // a QEMU that stays, stopped, would hold it open
	}
}

// console is what the machine's console said last; it can be asked for once.
func (i *instance) console(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, consoleWait)
	defer cancel()
	var tail string
	if err := i.query(ctx, "ringbuf-read", map[string]any{"device": "console", "size": consoleSize}, &tail); err != nil {
		return ""
	}
	return strings.ReplaceAll(tail, "\r", "")
}

// said is what QEMU itself said last.
func (i *instance) said() string { return i.words.Read() }

// bootFailure makes the error of a machine that did not come up one that says what its console did.
func (i *instance) bootFailure(err error) error {
	i.mu.Lock()
	ended := i.end
	i.mu.Unlock()
	var f *sandbox.Failure
	if ended == nil && (errors.As(err, &f) || refused(err) || errors.Is(err, context.Canceled)) {
		return err
	}
	f = sandbox.NewFailure(sandbox.KindBootFailed, "the machine did not boot: %v", err)
	switch {
	case ended != nil:
		f.Message, f.Evidence = fmt.Sprintf("the machine did not boot: %s", ended.Message), ended.Evidence
	default:
		if errors.Is(err, context.DeadlineExceeded) {
			f.Message = fmt.Sprintf("the machine did not answer within %v of its own time", i.d.cfg.BootTimeout)
		}
		f.Evidence = lastBytes(i.console(context.Background()), maxEvidence)
		if f.Evidence == "" {
			f.Evidence = i.said()
		}
	}
	return f
}

func lastBytes(s string, n int) string {
	if len(s) > n {
		s = s[len(s)-n:]
	}
	return strings.ToValidUTF8(strings.TrimSpace(s), "?")
}
