package main

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/opendsec/dsec/client"
	"github.com/spf13/cobra"
)

// asJSON is the --json of every verb.
const asJSON = "json"

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "dsec",
		Short: "Sandboxes for agents",
		Long: `dsec creates sandboxes, runs commands in them and moves files; it is also the server.

Start a node on this machine, then use it:

  dsec up --detach
  dsec image import docker://REGISTRY/debian:13 --name debian
  dsec run --base debian -- cat /etc/os-release

DSEC_URL and DSEC_API_KEY choose another service.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	group(root)
	root.PersistentFlags().Bool(asJSON, false, "print JSON; errors too, on stderr")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &exitError{2, fmt.Errorf("%w (see `%s --help`)", err, cmd.CommandPath())}
	})
	root.AddGroup(
		&cobra.Group{ID: "sandbox", Title: "Sandboxes:"},
		&cobra.Group{ID: "environment", Title: "Environments:"},
		&cobra.Group{ID: "node", Title: "Node:"},
	)
	add := func(id string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = id
			groups(c)
			root.AddCommand(c)
		}
	}
	add("sandbox", newRun(), newCreate(), newExec(), newShell(), newSession(), newCp(), newPs(), newInspect(), newLogs(), newStats(),
		newPause(), newResume(), newStop(), newRm(), newEvents(), newWatch(), newForward(), newScreen(), newFork(), newSnapshot(), newPack(), newNet(), newCall())
	add("node", newUp(), newDown(), newStatus(), newDoctor(), newKernel(), newKey(), newProject(), newVersion())
	add("environment", newImage(), newLayer(), newEnv(), newRuntime())
	root.AddCommand(newServe())
	root.AddCommand(extraCommands()...)
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			groups(c)
		}
	}
	return root
}

// newClient makes the client that a verb uses.
func newClient() (*client.Client, error) { return client.New(client.Options{}) }

// message is an error's text without Connect's code word in front, wherever in the chain it is.
func message(err error) string {
	s := err.Error()
	var ce *connect.Error
	if errors.As(err, &ce) {
		s = strings.Replace(s, ce.Error(), ce.Message(), 1)
	}
	return s
}

// lines is a message for a terminal: names in it may be a sandbox's choice, and must not steer the terminal, nor pass for
// further messages.
func lines(s string) string {
	out := strings.Split(s, "\n")
	for i := range out {
		out[i] = printable(strings.ReplaceAll(out[i], "\t", " "))
	}
	return strings.Join(out, "\n  ")
}

// exactArgs is cobra.ExactArgs with a message that shows the usage.
func exactArgs(n int) cobra.PositionalArgs { return rangeArgs(n, n) }

// rangeArgs wants between min and max arguments; max < 0 = any number.
func rangeArgs(min, max int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < min || (max >= 0 && len(args) > max) {
			return &exitError{2, fmt.Errorf("%d arguments do not fit: usage: %s", len(args), cmd.UseLine())}
		}
		return nil
	}
}
