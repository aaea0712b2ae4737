package main

import "github.com/spf13/cobra"

// extra collects commands of files that register themselves (internal roles).
var extra []func() *cobra.Command

func extraCommands() []*cobra.Command {
	var out []*cobra.Command
	for _, f := range extra {
		out = append(out, f())
	}
	return out
}
