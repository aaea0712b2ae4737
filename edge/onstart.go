package edge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

const (
	onStartTimeout    = 60.0
	maxOnStartTimeout = 3600.0
	// onStartTag marks the commands of toolkits in listings.
	onStartTag = "on-start"
)

// hook is what a toolkit has run in a new sandbox.
type hook struct {
	layer   string // for messages
	command *dsecv1.CommandSpec
}

// hooksOf reads the commands of the layers, bottom to top. Error: ErrInvalid.
func hooksOf(layers []*dsecv1.ResolvedLayer, env int64) ([]hook, error) {
	var out []hook
	for _, l := range layers {
		o := l.GetOnStart()
		if o == nil {
			continue
		}
		timeout := o.GetTimeoutSeconds()
		if timeout == 0 {
			timeout = onStartTimeout
		}
		h := hook{layer: strings.TrimSpace(l.GetKind() + " " + l.GetName()), command: &dsecv1.CommandSpec{
			Argv: o.GetArgv(), User: o.GetUser(), TimeoutSeconds: proto.Float64(timeout), Tag: onStartTag}}
		if !(timeout > 0 && timeout <= maxOnStartTimeout) {
			return nil, invalid("on-start of %s: its timeout is %v: want at most %v seconds", h.layer, timeout, maxOnStartTimeout)
		}
		if err := checkCommand(h.command, env); err != nil {
			return nil, fmt.Errorf("on-start of %s: %w", h.layer, err)
		}
		out = append(out, h)
	}
	return out, nil
}

// onStartEnded is the note that all of them ended well.
const onStartEnded = "on_start_ended"

// onStart runs what the toolkits want to be run before anybody else's command, one after the other. What fails ends the
// sandbox, with the blame that such an end of a command has. An edge that comes after this one goes on where it stopped.
func (b *box) onStart(ctx context.Context, hooks []hook) error {
	for n, h := range hooks {
		f := b.runHook(ctx, h, fmt.Sprintf("%s-%d", onStartTag, n))
		if f == nil {
			continue
		}
		select {
		case <-b.e.closing: // the next edge goes on with it
			return errClosing
		default:
		}
		f.Message = fmt.Sprintf("on-start of %s failed: %s", h.layer, f.Message)
		_ = ignoreClosed(b.stop(context.WithoutCancel(ctx), f))
		return f
	}
	if len(hooks) == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// Without the note they would only be looked at again: each is one operation, which is not done twice.
	if err := b.append(&record.Entry{Body: &record.Entry_Note{Note: &record.Note{Type: onStartEnded}}}); err != nil {
		b.e.log.Warn("record that a sandbox has started", "sandbox", b.id, "err", err)
	}
	return nil
}

// resumeHooks finishes what the edge before this one had begun: a command that runs is waited for, those that were not begun are
// run, and one that fails ends the sandbox as it would have.
func (b *box) resumeHooks() {
	defer close(b.hooking)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-b.gone:
		case <-b.e.closing:
		case <-ctx.Done():
		}
		cancel()
	}()
	hooks, err := hooksOf(b.created.GetResolved(), b.created.GetEnvBytes())
	if err == nil {
		err = b.awaitChannel(ctx)
	}
	if err == nil {
		err = b.onStart(ctx, hooks)
	}
	// A hook that fails has stopped the sandbox by now, and so ended ctx; a sandbox that is stopped by others fails no hook.
	var f *sandbox.Failure
	if errors.As(err, &f) && f.Kind != sandbox.KindStopped {
		b.hookFail = f
		return
	}
	if err != nil && !errors.Is(err, errClosing) && ctx.Err() == nil {
		b.hookFail = sandbox.NewFailure(sandbox.KindInternal, "what its toolkits run at the start could not be finished after a restart of the edge: %v", err)
		_ = ignoreClosed(b.stop(context.WithoutCancel(ctx), b.hookFail))
	}
}

// awaitChannel waits until commands can be run.
func (b *box) awaitChannel(ctx context.Context) error {
	for {
		if _, _, err := b.channel(); err == nil || !errors.Is(err, sandbox.ErrUnavailable) {
			return err
		}
		select {
		case <-time.After(channelRetry):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// channelRetry is the pause between two looks for a channel.
const channelRetry = 100 * time.Millisecond

// awaitHooks is for who asks again for a sandbox that was made under an earlier edge: it is not made before its toolkits have started.
func (b *box) awaitHooks(ctx context.Context) error {
	if b.hooking == nil {
		return nil
	}
	select {
	case <-b.hooking: // after the sandbox's end too, which ends what it waits for
		if b.hookFail != nil {
			return b.hookFail
		}
		return nil // what else ended it is told with it
	case <-b.e.closing:
		return errClosing
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// runHook runs one and returns why it failed.
func (b *box) runHook(ctx context.Context, h hook, operation string) *sandbox.Failure {
	c, order, err := b.launch(ctx, h.command, operation)
	if err == nil && c != nil {
		err = c.awaitEnd(ctx)
	}
	var done *dsecv1.Command
	if err == nil {
		done, err = b.showCommand(c, order)
	}
	if err != nil {
		if f, ok := context.Cause(ctx).(*sandbox.Failure); ok && ctx.Err() != nil {
			return &sandbox.Failure{Kind: f.Kind, Blame: f.Blame, Message: f.Message}
		}
		if ctx.Err() != nil {
			return creatorLeft()
		}
		return sandbox.NewFailure(sandbox.KindInternal, "%v", err)
	}
	end := done.GetResult().GetEnd()
	if end.GetKind() == string(sandbox.KindExited) && done.GetResult().GetExitCode() == 0 {
		return nil
	}
	f := sandbox.NewFailure(sandbox.Kind(end.GetKind()), "%s", end.GetMessage())
	f.Blame = sandbox.Blame(blameWord(end.GetBlame()))
	if stdout, stderr, err := b.collect(order); err == nil {
		all := append(stdout, stderr...)
		f.Evidence = strings.ToValidUTF8(string(all[max(0, len(all)-maxEvidence):]), "?")
	}
	return f
}
