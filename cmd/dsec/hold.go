package main

import (
	"log/slog"
	"os"
	"path/filepath"

	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/layer/lazy"
	"github.com/spf13/cobra"
)

func init() { extra = append(extra, newHold) }

func newHold() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:    "hold --socket PATH",
		Short:  "Keep descriptors that must outlive the other roles (started by `dsec up`)",
		Hidden: true,
		Args:   exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)).With("role", holdRole, "pid", os.Getpid())
			faults := lazy.NewFaults(filepath.Join(filepath.Dir(socket), "store-faults"))
			return hold.ServeWith(cmd.Context(), socket, hold.Options{Lapsed: lazy.Lapsed(faults, log)})
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "`path` of the socket")
	return cmd
}
