package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
)

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
