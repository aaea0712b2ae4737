package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
)

// errorJSON is how errors look on stderr with --json, one to a line: {"error":{"code":...,"message":...}}.
type errorJSON struct {
	Code    string          `json:"code"` // a word of Connect's, like not_found; of an error in usage invalid_argument
	Message string          `json:"message"`
	Failure json.RawMessage `json:"failure,omitempty"` // a dsec.v1.Failure: what ended it, and whose fault that was
}

// printError prints an error on stderr, for people or as JSON.
func printError(w io.Writer, asJSON bool, usage bool, err error) {
	if !asJSON {
		fmt.Fprintln(w, "dsec: "+lines(message(err)))
		if end := outputEnd(err); end != "" {
			fmt.Fprintln(w, "its output ended with:\n  "+lines(end))
		}
		return
	}
	e := errorJSON{Code: connect.CodeOf(err).String(), Message: message(err)}
	if usage {
		e.Code = connect.CodeInvalidArgument.String()
	}
	if f := failureOf(err); f != nil {
		e.Failure, _ = protoJSON(f)
	}
	if ce := (*client.CreateError)(nil); errors.As(err, &ce) && ce.Item.GetCode() != "" {
		e.Code = ce.Item.GetCode()
	}
	if ns := (*client.NoServiceError)(nil); errors.As(err, &ns) {
		e.Code = connect.CodeUnavailable.String()
	}
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	_ = out.Encode(map[string]errorJSON{"error": e})
}

// outputEnd is the end of what was printed by what kept a sandbox from being created, such as a toolkit's on-start command; ""
// where there is nothing. It is text of the sandbox's.
func outputEnd(err error) string {
	const most = 10 // lines
	ce := (*client.CreateError)(nil)
	if !errors.As(err, &ce) {
		return ""
	}
	all := strings.Split(strings.TrimSpace(ce.Item.GetFailure().GetEvidence()), "\n")
	return strings.Join(all[max(0, len(all)-most):], "\n")
}

// failureOf is the failure that the service said, nil where it said none.
func failureOf(err error) *dsecv1.Failure {
	if ce := (*client.CreateError)(nil); errors.As(err, &ce) {
		return ce.Item.GetFailure()
	}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return nil
	}
	for _, d := range ce.Details() {
		m, err := d.Value()
		if f, ok := m.(*dsecv1.Failure); err == nil && ok {
			return f
		}
	}
	return nil
}

// askedJSON tells whether --json stands among arguments that could not be parsed.
func askedJSON(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--"+asJSON) || slices.Contains(args, "--"+asJSON+"=true")
}

// group makes a verb that only has verbs below it: alone it shows them, and another word is an error in usage.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := ""
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			hint = ", did you mean " + strings.Join(near, " or ") + "?"
		}
		return &exitError{2, fmt.Errorf("unknown command %q for %q%s (see `%s --help`)", args[0], cmd.CommandPath(), hint, cmd.CommandPath())}
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}

// groups makes groups of a verb and of those below it that do nothing themselves.
func groups(cmd *cobra.Command) {
	if cmd.HasSubCommands() && !cmd.Runnable() {
		group(cmd)
	}
	for _, c := range cmd.Commands() {
		groups(c)
	}
}
