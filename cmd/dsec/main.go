// Command dsec is the client of DSec and every role of its server.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/opendsec/dsec/client"
)

// exitInfra is the exit code of run, exec and shell when the platform failed, not the command.
const exitInfra = 125

// exitInterrupted is the exit code of other commands that Ctrl-C or SIGTERM ended, as a shell counts them.
const exitInterrupted = 128 + int(syscall.SIGINT)

// exitError ends the program with a code; a nil err says that nothing is left to print.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return client.Message(e.err)
}

func (e *exitError) Unwrap() error { return e.err }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := execute(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	code := 1
	var ee *exitError
	if errors.As(err, &ee) {
		code = ee.code
		if ee.err == nil {
			return code
		}
	}
	err = interrupted(ctx, err, "")
	if stopped := (*interruptedError)(nil); errors.As(err, &stopped) && code == 1 {
		code = exitInterrupted
	}
	usage := code == 2
	printError(os.Stderr, wantJSON(cmd) || usage && askedJSON(args), usage, err)
	return code
}
