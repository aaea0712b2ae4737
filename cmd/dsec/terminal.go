package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"golang.org/x/term"
)

// loginShell starts the best shell that the sandbox has.
const loginShell = `if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi`

// plainShell reads a script from stdin.
const plainShell = `if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi`

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

func terminalSize() *dsecv1.TerminalSize {
	w, h, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || w <= 0 || h <= 0 {
		w, h = 80, 24
	}
	return &dsecv1.TerminalSize{Columns: uint32(w), Rows: uint32(h)}
}

// attached runs a command with this process's streams: bytes pass unchanged, and with a terminal this one
// becomes raw and its size follows.
func attached(ctx context.Context, c *client.Client, r client.Run, interactive, tty bool, stdout, stderr io.Writer) (*dsecv1.Command, error) {
	if interactive {
		r.Stdin = os.Stdin
	}
	r.Output = func(o *dsecv1.Output) error {
		w := stdout
		if o.GetStream() == dsecv1.Stream_STREAM_STDERR {
			w = stderr
		}
		if n := o.GetCutBytes(); n > 0 {
			fmt.Fprintf(stderr, "\ndsec: %d bytes of output were cut here\n", n)
		}
		_, err := w.Write(o.GetData())
		return err
	}
	if !tty {
		return c.Run(ctx, r)
	}
	r.Spec.Terminal = terminalSize()
	if v := os.Getenv("TERM"); v != "" && r.Spec.GetEnv()["TERM"] == "" {
		if r.Spec.Env == nil {
			r.Spec.Env = map[string]string{}
		}
		r.Spec.Env["TERM"] = v
	}
	if interactive && isTerminal(os.Stdin) {
		old, err := term.MakeRaw(int(os.Stdin.Fd()))
		if err != nil {
			return nil, fmt.Errorf("make the terminal raw: %w", err)
		}
		defer term.Restore(int(os.Stdin.Fd()), old)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	started := r.Started
	r.Started = func(cmd *dsecv1.Command) {
		if started != nil {
			started(cmd)
		}
		wg.Go(func() { followSize(ctx, c, r.SandboxID, cmd.GetId(), r.Spec.GetTerminal()) })
	}
	return c.Run(ctx, r)
}

// followSize passes changes of the terminal's size on until ctx is done.
func followSize(ctx context.Context, c *client.Client, sandboxID, commandID string, last *dsecv1.TerminalSize) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	defer signal.Stop(changes)
	for {
		if now := terminalSize(); now.GetColumns() != last.GetColumns() || now.GetRows() != last.GetRows() {
			last = now
			// A size that did not arrive is corrected by the next change.
			_, _ = c.Commands.ResizeTerminal(ctx, &dsecv1.ResizeTerminalRequest{SandboxId: sandboxID, CommandId: commandID, Size: now})
		}
		select {
		case <-ctx.Done():
			return
		case <-changes:
		}
	}
}
