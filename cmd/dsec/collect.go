package main

import (
	"bytes"
	"fmt"
	"io"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

// maxCollected bounds the output that --json gathers of each stream, bytes.
const maxCollected = 64 << 20

// collected is where a command's output goes: through, or with --json into memory and then, with the command, out
// as one ExecResponse.
type collected struct {
	json     bool
	out, err bounded
	stdout   io.Writer
	passOut  io.Writer
	passErr  io.Writer
}

func newCollected(cmd *cobra.Command) *collected {
	c := &collected{json: wantJSON(cmd), stdout: cmd.OutOrStdout(), passOut: cmd.OutOrStdout(), passErr: cmd.ErrOrStderr()}
	if c.json {
		c.passOut, c.passErr = &c.out, &c.err
	}
	return c
}

// print prints the JSON when that is wanted.
func (c *collected) print(done *dsecv1.Command) error {
	if !c.json {
		return nil
	}
	return printProto(c.stdout, &dsecv1.ExecResponse{Command: done, Stdout: c.out.Bytes(), Stderr: c.err.Bytes()})
}

// bounded is a buffer that refuses to grow beyond maxCollected.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxCollected {
		return 0, fmt.Errorf("the command wrote more than %d bytes: run it without --json, or read `dsec logs`", maxCollected)
	}
	return b.Buffer.Write(p)
}
