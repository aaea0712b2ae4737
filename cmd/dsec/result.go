package main

import (
	"fmt"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

// exitOf turns a command's end into this program's: its exit code; what ended it otherwise is said on stderr (with
// --json it is in what was printed); a failure of the platform is exit 125, whatever code came with it.
func exitOf(verb *cobra.Command, cmd *dsecv1.Command) error {
	res := cmd.GetResult()
	end := res.GetEnd()
	if !wantJSON(verb) && end.GetKind() != "" && end.GetKind() != "exited" && end.GetKind() != "signalled" {
		what := "the command was ended"
		if end.GetKind() == "cannot_start" {
			what = "the command did not start"
		}
		fmt.Fprintf(verb.ErrOrStderr(), "dsec: %s: %s (%s): %s\n", what, end.GetKind(),
			enumText(end.GetBlame().String(), "BLAME_"), printable(end.GetMessage()))
	}
	code := int(res.GetExitCode())
	switch {
	case res == nil || end.GetBlame() == dsecv1.Blame_BLAME_INFRA:
		code = exitInfra
	case end.GetKind() != "exited" && code == 0:
		code = exitInfra
	}
	if code == 0 {
		return nil
	}
	return &exitError{code: code}
}

// infra marks an error as the platform's, not the command's.
func infra(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{exitInfra, err}
}
