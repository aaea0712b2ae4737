package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/spf13/cobra"
)

// maxForwarded bounds the connections that one forward carries at once.
const maxForwarded = 512

func newForward() *cobra.Command {
	var asURL bool
	var bind, life string
	cmd := &cobra.Command{
		Use:   "forward [flags] ID [LOCAL:]PORT...",
		Short: "Reach TCP ports of a sandbox from this machine",
		Long: `Forward listens on local ports (0 = any free one) and carries each connection to a port of the sandbox, until
Ctrl-C. With --url it prints an address for a browser instead, which opens this one port until it expires.`,
		Example: `  dsec forward sabcd... 8000
  dsec forward sabcd... 15432:5432
  dsec forward --url sabcd... 8000`,
		Args: rangeArgs(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			box, err := c.Sandboxes.GetSandbox(cmd.Context(), &dsecv1.GetSandboxRequest{SandboxId: args[0]})
			if err != nil {
				return err
			}
			if end := box.GetSandbox().GetEnd(); end != nil {
				return fmt.Errorf("sandbox %s ended at %s: %s: %s", args[0],
					box.GetSandbox().GetEndedAt().AsTime().Format(time.RFC3339), end.GetKind(), printable(end.GetMessage()))
			}
			if asURL {
				return printPortURLs(cmd, c, args[0], args[1:], life)
			}
			return forward(cmd, c, args[0], args[1:], bind)
		},
	}
	cmd.Flags().BoolVar(&asURL, "url", false, "print an address on the ports' own origin instead of listening")
	cmd.Flags().StringVar(&life, "for", "12h", "how long the address of --url works")
	cmd.Flags().StringVar(&bind, "bind", "127.0.0.1", "local `address` to listen on")
	return cmd
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("port %q: want a number up to 65535", s)
	}
	return uint16(n), nil
}

func parseForward(s string) (local, remote uint16, err error) {
	l, r, two := strings.Cut(s, ":")
	if !two {
		r = l
	}
	if remote, err = parsePort(r); err == nil && remote == 0 {
		err = fmt.Errorf("port 0: name the port in the sandbox")
	}
	if err == nil {
		local, err = parsePort(l)
	}
	return local, remote, err
}

func printPortURLs(cmd *cobra.Command, c *client.Client, id string, ports []string, life string) error {
	seconds, err := parseSeconds(life)
	if err != nil {
		return &exitError{2, err}
	}
	for _, p := range ports {
		_, remote, err := parseForward(p)
		if err != nil {
			return &exitError{2, err}
		}
		u, err := c.PortURL(cmd.Context(), id, remote, time.Duration(seconds*float64(time.Second)))
		if err != nil {
			return err
		}
		if wantJSON(cmd) {
			if err := printJSON(cmd.OutOrStdout(), u); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintln(cmd.OutOrStdout(), u.URL)
	}
	return nil
}

func forward(cmd *cobra.Command, c *client.Client, id string, specs []string, bind string) error {
	ctx := cmd.Context()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxForwarded)
	for _, s := range specs {
		local, remote, err := parseForward(s)
		if err != nil {
			return &exitError{2, err}
		}
		ln, err := net.Listen("tcp", net.JoinHostPort(bind, strconv.Itoa(int(local))))
		if err != nil {
			return fmt.Errorf("listen for port %d: %w (LOCAL:PORT chooses another local port, 0 any free one)", remote, err)
		}
		stop := context.AfterFunc(ctx, func() { ln.Close() })
		defer stop()
		defer ln.Close()
		if wantJSON(cmd) {
			if err := printJSON(cmd.OutOrStdout(), map[string]any{"listen": ln.Addr().String(), "port": remote}); err != nil {
				return err
			}
		} else {
			fmt.Fprintf(cmd.OutOrStdout(), "%s -> %s:%d\n", ln.Addr(), id, remote)
		}
		wg.Go(func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				slots <- struct{}{}
				wg.Go(func() {
					defer func() { <-slots }()
					carry(ctx, cmd, conn, fmt.Sprintf("port %d", remote), func() (net.Conn, error) { return c.Dial(ctx, id, remote) })
				})
			}
		})
	}
	<-ctx.Done()
	return nil
}

// carry joins one local connection to one of the sandbox until both directions have ended.
func carry(ctx context.Context, cmd *cobra.Command, local net.Conn, what string, dial func() (net.Conn, error)) {
	defer local.Close()
	remote, err := dial()
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "dsec: %s: %s\n", what, lines(message(err)))
		return
	}
	defer remote.Close()
	stop := context.AfterFunc(ctx, func() { local.Close(); remote.Close() })
	defer stop()
	var wg sync.WaitGroup
	pass := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if w, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
			_ = w.CloseWrite()
			return
		}
		_ = to.Close()
		_ = from.Close()
	}
	wg.Go(func() { pass(remote, local) })
	wg.Go(func() { pass(local, remote) })
	wg.Wait()
}
