package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
)

// interruptedError says of a request that was cancelled by who asked, with Ctrl-C or SIGTERM, just that.
type interruptedError struct {
	err  error
	note string // what it leaves
}

func (e *interruptedError) Error() string {
	if e.note == "" {
		return "interrupted"
	}
	return "interrupted: " + e.note
}

func (e *interruptedError) Unwrap() error { return e.err }

// interrupted makes an error that comes of an interrupt one that says so, and what is left; others stay as they are.
func interrupted(ctx context.Context, err error, note string) error {
	var already *interruptedError
	if err == nil || ctx.Err() == nil || errors.As(err, &already) || !errors.Is(err, context.Canceled) && connect.CodeOf(err) != connect.CodeCanceled {
		return err
	}
	return &interruptedError{err, note}
}

// killOnSecond waits for another interrupt and kills the command's whole tree then. It returns when ctx is done.
func killOnSecond(ctx context.Context, c *client.Client, sandboxID, commandID string, giveUp func()) {
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(again)
	select {
	case <-ctx.Done():
		return
	case <-again:
	}
	call, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := c.Commands.SignalCommand(call, &dsecv1.SignalCommandRequest{
		SandboxId: sandboxID, CommandId: commandID, Signal: int32(syscall.SIGKILL), Tree: true}); err != nil {
		giveUp()
	}
}
