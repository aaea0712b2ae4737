package main

import (
	"fmt"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/spf13/cobra"
)

func newLogs() *cobra.Command {
	var follow bool
	var from int64
	cmd := &cobra.Command{
		Use:   "logs [flags] ID [COMMAND-ID]",
		Short: "List a sandbox's commands, or print one's recorded output",
		Long: `Logs lists the commands that ran in a sandbox, in order. With a command's id it prints its recorded output;
with -f it goes on until the command ends and exits with its exit code.`,
		Args: rangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			if len(args) == 1 {
				return listCommands(cmd, c, args[0])
			}
			if follow {
				done, err := c.Attach(cmd.Context(), args[0], args[1], from, writeOutput(cmd))
				if err != nil {
					return infra(err)
				}
				return exitOf(cmd, done)
			}
			return printRecorded(cmd, c, args[0], args[1], from)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the command ends")
	cmd.Flags().Int64Var(&from, "offset", 0, "start at this `byte` of the output")
	return cmd
}

func writeOutput(cmd *cobra.Command) func(*dsecv1.Output) error {
	return func(o *dsecv1.Output) error {
		if wantJSON(cmd) {
			return printProtoLine(cmd.OutOrStdout(), o)
		}
		if n := o.GetCutBytes(); n > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "dsec: %d bytes of output were cut here\n", n)
		}
		w := cmd.OutOrStdout()
		if o.GetStream() == dsecv1.Stream_STREAM_STDERR {
			w = cmd.ErrOrStderr()
		}
		_, err := w.Write(o.GetData())
		return err
	}
}

func printRecorded(cmd *cobra.Command, c *client.Client, sandboxID, commandID string, from int64) error {
	s, err := c.Commands.AttachCommand(cmd.Context(), &dsecv1.AttachCommandRequest{SandboxId: sandboxID, CommandId: commandID, FromOffset: from, NoFollow: true})
	if err != nil {
		return err
	}
	defer s.Close()
	write := writeOutput(cmd)
	for s.Receive() {
		if o := s.Msg().GetEvent().GetOutput(); o != nil {
			if err := write(o); err != nil {
				return err
			}
		}
	}
	return s.Err()
}

func listCommands(cmd *cobra.Command, c *client.Client, id string) error {
	out := &dsecv1.ListCommandsResponse{}
	req := &dsecv1.ListCommandsRequest{SandboxId: id, PageSize: 1000}
	for {
		resp, err := c.Commands.ListCommands(cmd.Context(), req)
		if err != nil {
			return err
		}
		out.Commands = append(out.Commands, resp.GetCommands()...)
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			break
		}
	}
	if wantJSON(cmd) {
		return printProto(cmd.OutOrStdout(), out)
	}
	rows := make([][]string, len(out.Commands))
	for i, k := range out.Commands {
		end, bytes := "running", "-"
		if res := k.GetResult(); res != nil {
			end, bytes = fmt.Sprintf("%s %d", res.GetEnd().GetKind(), res.GetExitCode()), bytesText(res.GetOutputBytes())
		}
		rows[i] = []string{fmt.Sprint(k.GetOrder()), k.GetId(), end, bytes, ageText(k.GetStartedAt()), commandText(k.GetSpec())}
	}
	return table(cmd.OutOrStdout(), "ORDER ID END OUTPUT AGE COMMAND", rows)
}

// commandText is a command in at most 60 bytes.
func commandText(s *dsecv1.CommandSpec) string {
	t := s.GetShell()
	if t == "" {
		t = strings.Join(s.GetArgv(), " ")
	}
	if len(t) > 60 {
		t = strings.ToValidUTF8(t[:57], "") + "..."
	}
	return t
}
