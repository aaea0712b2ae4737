package main

import (
	"context"
	"fmt"
	"net"
	"sync"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

// maxViewers bounds the connections that one vnc carries at once.
const maxViewers = 16

func newScreenVNC() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "vnc ID",
		Short: "Let a VNC viewer on this machine reach the screen",
		Long: `Vnc listens on a local address and carries each connection to the screen, until Ctrl-C. Who connects to that address
needs no password: keep it a local one.`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx := cmd.Context()
			if _, err := c.Screens.GetScreen(ctx, &dsecv1.GetScreenRequest{SandboxId: args[0]}); err != nil {
				return c.Explain(err)
			}
			ln, err := net.Listen("tcp", listen)
			if err != nil {
				return fmt.Errorf("listen for viewers: %w (--listen chooses another address)", err)
			}
			defer ln.Close()
			stop := context.AfterFunc(ctx, func() { ln.Close() })
			defer stop()
			if wantJSON(cmd) {
				err = printJSON(cmd.OutOrStdout(), map[string]any{"listen": ln.Addr().String()})
			} else {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "vnc://%s\n", ln.Addr())
			}
			if err != nil {
				return err
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			slots := make(chan struct{}, maxViewers)
			for {
				conn, err := ln.Accept()
				if ctx.Err() != nil {
					return nil
				}
				if err != nil {
					return err
				}
				slots <- struct{}{}
				wg.Go(func() {
					defer func() { <-slots }()
					carry(ctx, cmd, conn, "screen", func() (net.Conn, error) { return c.DialScreen(ctx, args[0]) })
				})
			}
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "local `ADDRESS` to listen on")
	return cmd
}
