package main

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

func newWatch() *cobra.Command {
	var user string
	var recursive bool
	cmd := &cobra.Command{
		Use:   "watch ID PATH",
		Short: "Print what happens in a directory of a sandbox, until interrupted",
		Long: "Print what happens in a directory of a sandbox, until interrupted: created, written, removed, moved (away), attributes; lost where\n" +
			"there was more than could be held. Names are relative to PATH, directories end in a slash. \"watching\" on standard error says that nothing is missed from now on.",
		Args: exactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			s, err := c.Files.WatchDirectory(cmd.Context(), &dsecv1.WatchDirectoryRequest{SandboxId: args[0], Path: args[1], User: user, Recursive: recursive})
			if err != nil {
				return err
			}
			defer s.Close()
			for s.Receive() {
				switch e := s.Msg().GetEvent().(type) {
				case *dsecv1.WatchDirectoryResponse_Started:
					fmt.Fprintln(cmd.ErrOrStderr(), "watching")
				case *dsecv1.WatchDirectoryResponse_File:
					if err := printFileEvent(cmd, e.File); err != nil {
						return err
					}
				}
			}
			err = s.Err()
			if errors.Is(err, context.Canceled) || connect.CodeOf(err) == connect.CodeCanceled && cmd.Context().Err() != nil {
				return nil
			}
			if err == nil || !connect.IsWireError(err) { // a watch has no end of its own, and no record to go on from
				return infra(errors.New("the connection to the sandbox's node was lost: what happened since is not told; watch again"))
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "watch as `USER`")
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "also what lies beneath")
	return cmd
}

var fileEventWords = map[dsecv1.FileEventKind]string{
	dsecv1.FileEventKind_FILE_EVENT_KIND_CREATED:    "created",
	dsecv1.FileEventKind_FILE_EVENT_KIND_WRITTEN:    "written",
	dsecv1.FileEventKind_FILE_EVENT_KIND_REMOVED:    "removed",
	dsecv1.FileEventKind_FILE_EVENT_KIND_MOVED:      "moved",
	dsecv1.FileEventKind_FILE_EVENT_KIND_ATTRIBUTES: "attributes",
	dsecv1.FileEventKind_FILE_EVENT_KIND_LOST:       "lost",
}

func printFileEvent(cmd *cobra.Command, e *dsecv1.FileEvent) error {
	if wantJSON(cmd) {
		return printProtoLine(cmd.OutOrStdout(), e)
	}
	line := fileEventWords[e.GetKind()]
	if e.GetPath() != "" {
		line += " " + printable(e.GetPath())
	}
	if e.GetDirectory() {
		line += "/"
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), line)
	return err
}
