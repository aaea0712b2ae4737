package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

func newEvents() *cobra.Command {
	var follow bool
	var labels []string
	cmd := &cobra.Command{
		Use:   "events [ID]",
		Short: "Print what happened to a sandbox, or to all with some labels",
		Args:  rangeArgs(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			sel, err := parsePairs("--label", labels, nil)
			if err != nil {
				return &exitError{2, err}
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			req := &dsecv1.StreamEventsRequest{Labels: sel, Follow: follow}
			if len(args) == 1 {
				req.SandboxId = args[0]
			}
			for {
				s, err := c.Sandboxes.StreamEvents(cmd.Context(), req)
				if err != nil {
					return err
				}
				for s.Receive() {
					ev := s.Msg().GetEvent()
					if ev == nil { // only tells that the stream lives
						continue
					}
					if req.SandboxId != "" {
						req.AfterSequence = ev.GetSequence()
					}
					if err := printEvent(cmd, ev); err != nil {
						return err
					}
				}
				err = s.Err()
				_ = s.Close()
				switch {
				case errors.Is(err, context.Canceled) || connect.CodeOf(err) == connect.CodeCanceled && cmd.Context().Err() != nil:
					return nil
				case err == nil: // the server said that this was all
					return nil
				case err != nil && connect.IsWireError(err) && connect.CodeOf(err) != connect.CodeUnavailable:
					return err
				case !follow || req.SandboxId == "":
					// Events of many sandboxes have no place to go on from.
					return fmt.Errorf("the stream of events broke (some may be missing; ask again): %w", err)
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(time.Second):
				}
			}
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new events")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "only sandboxes with label `NAME=VALUE`")
	return cmd
}

func printEvent(cmd *cobra.Command, ev *dsecv1.Event) error {
	if wantJSON(cmd) {
		return printProtoLine(cmd.OutOrStdout(), ev)
	}
	text := ev.GetMessage()
	if len(ev.GetAttributes()) > 0 {
		text += " [" + labelText(ev.GetAttributes()) + "]"
	}
	line := fmt.Sprintf("%s %s %d %s %s", ev.GetAt().AsTime().Local().Format("2006-01-02T15:04:05.000Z07:00"),
		ev.GetSandboxId(), ev.GetSequence(), printable(ev.GetType()), printable(text))
	_, err := fmt.Fprintln(cmd.OutOrStdout(), strings.TrimSpace(line))
	return err
}
