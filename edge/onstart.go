package edge

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
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

// onStart runs what the toolkits want to be run before anybody else's command, one after the other. What fails ends the
// sandbox, with the blame that such an end of a command has.
func (b *box) onStart(ctx context.Context, hooks []hook) error {
	for n, h := range hooks {
		f := b.runHook(ctx, h, fmt.Sprintf("%s-%d", onStartTag, n))
		if f == nil {
			continue
		}
		select {
		case <-b.e.closing: // the sandbox goes on under the next edge
			return errClosing
		default:
		}
		f.Message = fmt.Sprintf("on-start of %s failed: %s", h.layer, f.Message)
		_ = ignoreClosed(b.stop(context.WithoutCancel(ctx), f))
		return f
	}
	return nil
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
