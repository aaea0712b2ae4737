package main

import (
	"fmt"
	"strings"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

func newSnapshot() *cobra.Command {
	cmd := &cobra.Command{Use: "snapshot", Short: "Keep disks of running sandboxes on their node"}
	cmd.AddCommand(newSnapshotCreate(), newSnapshotLs(), newSnapshotRm())
	return cmd
}

func newSnapshotCreate() *cobra.Command {
	var labels []string
	cmd := &cobra.Command{
		Use:   "create ID",
		Short: "Keep the disk of a sandbox as it is now, and print the snapshot's id",
		Long: `The sandbox is frozen for some milliseconds. Processes and memory are kept of microVMs only. While the snapshot is there, what the
sandbox overwrites or removes goes on counting against its disk limit.`,
		Example: `  dsec snapshot create $id
  dsec create --snapshot $snapshot --count 4`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pairs, err := parsePairs("--label", labels, nil)
			if err != nil {
				return &exitError{2, err}
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			r, err := c.Snapshots.CreateSnapshot(cmd.Context(), &dsecv1.CreateSnapshotRequest{SandboxId: args[0], Labels: pairs})
			if err != nil {
				return err
			}
			if wantJSON(cmd) {
				return printProto(cmd.OutOrStdout(), r)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), r.GetSnapshot().GetId())
			return err
		},
	}
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "label `NAME=VALUE`")
	return cmd
}

func newSnapshotLs() *cobra.Command {
	var labels []string
	var all bool
	cmd := &cobra.Command{
		Use:   "ls [SANDBOX]",
		Short: "List snapshots, newest first",
		Args:  rangeArgs(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pairs, err := parsePairs("--label", labels, nil)
			if err != nil {
				return &exitError{2, err}
			}
			req := &dsecv1.ListSnapshotsRequest{Labels: pairs, All: all}
			if len(args) == 1 {
				req.SandboxId = args[0]
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			r, err := c.Snapshots.ListSnapshots(cmd.Context(), req)
			if err != nil {
				return err
			}
			if wantJSON(cmd) {
				return printProto(cmd.OutOrStdout(), r)
			}
			rows := make([][]string, len(r.GetSnapshots()))
			for i, s := range r.GetSnapshots() {
				rows[i] = []string{s.GetId(), s.GetSandboxId(), s.GetCreatedAt().AsTime().Local().Format(time.DateTime), fmt.Sprint(s.GetChildren()),
					(time.Duration(s.GetCost().GetFrozenUsec()) * time.Microsecond).Round(100 * time.Microsecond).String(), sizeText(s.GetSizeBytes()), labelText(s.GetLabels())}
			}
			return table(cmd.OutOrStdout(), "SNAPSHOT SANDBOX CREATED CHILDREN FROZEN SIZE LABELS", rows)
		},
	}
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "only those with label `NAME=VALUE`")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also those that forks and packs keep")
	return cmd
}

// sizeText is what a snapshot takes, where it takes room of its own.
func sizeText(n int64) string {
	if n == 0 {
		return "-"
	}
	return bytesText(n)
}

func newSnapshotRm() *cobra.Command {
	return &cobra.Command{
		Use:   "rm SNAPSHOT...",
		Short: "Forget snapshots (sandboxes made of them go on)",
		Args:  rangeArgs(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			failed := false
			for _, id := range args {
				r, err := c.Snapshots.DeleteSnapshot(cmd.Context(), &dsecv1.DeleteSnapshotRequest{SnapshotId: id})
				switch {
				case err != nil:
					failed = true
					printError(cmd.ErrOrStderr(), wantJSON(cmd), false, fmt.Errorf("snapshot rm %s: %w", id, err))
				case wantJSON(cmd):
					if err := printProtoLine(cmd.OutOrStdout(), r.GetSnapshot()); err != nil {
						return err
					}
				default:
					fmt.Fprintln(cmd.OutOrStdout(), id)
				}
			}
			if failed {
				return &exitError{code: 1}
			}
			return nil
		},
	}
}

func newFork() *cobra.Command {
	var f forkFlags
	cmd := &cobra.Command{
		Use:   "fork ID",
		Short: "Make new sandboxes from a running one's disk, and print their ids",
		Long: `The children are like the original: limits, environment, network, lifetimes. Each records its own changes only.
Processes and memory are forked of microVMs only. To make sandboxes of a snapshot: dsec create --snapshot SNAPSHOT.`,
		Example: `  dsec fork $id --count 8 --label step=12`,
		Args:    exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := f.request(cmd, args[0])
			if err != nil {
				return &exitError{2, err}
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			made, err := c.Fork(cmd.Context(), req)
			if wantJSON(cmd) && (err == nil || len(made) > 0) {
				if perr := printProto(cmd.OutOrStdout(), &dsecv1.ListSandboxesResponse{Sandboxes: made}); perr != nil {
					return perr
				}
				return err
			}
			for _, s := range made {
				fmt.Fprintln(cmd.OutOrStdout(), s.GetId())
			}
			return err
		},
	}
	f.register(cmd)
	return cmd
}

// forkFlags say what is different in the children.
type forkFlags struct {
	count                int32
	key, ttl, idle       string
	labels, env, secrets []string
}

func (f *forkFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.Int32Var(&f.count, "count", 1, "how many")
	fl.StringVar(&f.key, "idempotency-key", "", "the same key again returns the same sandboxes")
	fl.StringVar(&f.ttl, "ttl", "", "time to live from readiness, like 10m (default: the original's)")
	fl.StringVar(&f.idle, "idle", "", "end after this long without activity (default: the original's)")
	fl.StringArrayVarP(&f.labels, "label", "l", nil, "label `NAME=VALUE`, instead of the original's")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "environment variable `NAME=VALUE` besides the original's")
	fl.StringArrayVar(&f.secrets, "secret", nil, "like --env, but never shown or recorded: `NAME` (from this environment) or NAME=VALUE")
}

func (f *forkFlags) request(cmd *cobra.Command, id string) (*dsecv1.ForkSandboxRequest, error) {
	if f.count < 1 {
		return nil, fmt.Errorf("--count %d: must be above 0", f.count)
	}
	req := &dsecv1.ForkSandboxRequest{SandboxId: id, Count: f.count, IdempotencyKey: f.key}
	for _, d := range []struct {
		name, text string
		to         **float64
	}{{"ttl", f.ttl, &req.TtlSeconds}, {"idle", f.idle, &req.IdleTimeoutSeconds}} {
		if !cmd.Flags().Changed(d.name) {
			continue
		}
		v, err := parseSeconds(d.text)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", d.name, err)
		}
		*d.to = &v
	}
	var err error
	if req.Labels, err = parsePairs("--label", f.labels, nil); err != nil {
		return nil, err
	}
	if req.Env, err = parsePairs("--env", f.env, nil); err != nil {
		return nil, err
	}
	req.Secrets, err = parsePairs("--secret", f.secrets, osEnv)
	return req, err
}

// reportText is a pack's report for people.
func reportText(r *dsecv1.PackReport) string {
	parts := []string{fmt.Sprintf("%d files (%s)", r.GetFiles(), bytesText(r.GetBytes())), fmt.Sprintf("%d directories", r.GetDirectories())}
	for _, x := range []struct {
		n    int64
		what string
	}{{r.GetOthers(), "others"}, {r.GetRemoved(), "removed"}, {r.GetExcluded(), "excluded"}, {r.GetSkipped(), "devices and sockets left out"}} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	frozen := time.Duration(r.GetCost().GetFrozenUsec()) * time.Microsecond
	return fmt.Sprintf("%s; frozen for %v", strings.Join(parts, ", "), frozen.Round(100*time.Microsecond))
}
