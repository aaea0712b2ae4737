package main

import (
	"fmt"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

func newStats() *cobra.Command {
	return &cobra.Command{
		Use:   "stats [ID...]",
		Short: "Show CPU, memory, disk and processes of sandboxes (default: all that run)",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			if len(args) == 0 {
				boxes, err := listAll(cmd.Context(), c.Sandboxes, nil, false)
				if err != nil {
					return err
				}
				for _, s := range boxes {
					args = append(args, s.GetId())
				}
			}
			var rows [][]string
			for _, id := range args {
				resp, err := c.Sandboxes.GetSandboxStats(cmd.Context(), &dsecv1.GetSandboxStatsRequest{SandboxId: id})
				if err != nil {
					return fmt.Errorf("statistics of %s: %w", id, err)
				}
				s := resp.GetStats()
				if wantJSON(cmd) {
					if err := printProtoLine(cmd.OutOrStdout(), resp); err != nil {
						return err
					}
					continue
				}
				rows = append(rows, []string{id, (time.Duration(s.GetCpuUsageUsec()) * time.Microsecond).Round(time.Millisecond).String(),
					memoryText(s), bytesText(s.GetMemoryPeakBytes()), of(s.GetDiskBytes(), s.GetDiskLimitBytes()),
					fmt.Sprintf("%d/%d", s.GetPids(), s.GetPidsLimit()), fmt.Sprint(s.GetOomKills())})
			}
			if wantJSON(cmd) {
				return nil
			}
			return table(cmd.OutOrStdout(), "ID CPU-TIME MEMORY PEAK DISK PIDS OOM-KILLS", rows)
		},
	}
}

func of(used, limit int64) string { return bytesText(used) + "/" + bytesText(limit) }

// memoryText is what a sandbox has of memory, or what its memory takes on disk where it is put away.
func memoryText(s *dsecv1.SandboxStats) string {
	if n := s.GetSavedBytes(); n > 0 && s.GetMemoryBytes() == 0 {
		return bytesText(n) + " saved"
	}
	return of(s.GetMemoryBytes(), s.GetMemoryLimitBytes())
}
