package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/client"
)

// statusReport is the shape of `dsec status --json`.
type statusReport struct {
	Running bool      `json:"running"`
	Up      *upState  `json:"up,omitempty"`
	Node    *jsonNode `json:"node,omitempty"`
	Problem string    `json:"problem,omitempty"`
}

// jsonNode prints as protojson does.
type jsonNode struct{ *dsecv1.GetNodeResponse }

func (n jsonNode) MarshalJSON() ([]byte, error) { return protojson.Marshal(n.GetNodeResponse) }

func newStatus() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what runs on this machine (exit 1 when the node does not answer)",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			abs, err := filepath.Abs(state)
			if err != nil {
				return err
			}
			r := readStatus(cmd.Context(), stateDir(abs))
			if wantJSON(cmd) {
				err = printJSON(cmd.OutOrStdout(), r)
			} else {
				err = r.print(cmd, stateDir(abs))
			}
			if err == nil && r.Problem != "" {
				err = &exitError{code: 1}
			}
			return err
		},
	}
	stateFlag(cmd, &state)
	return cmd
}

func readStatus(ctx context.Context, d stateDir) statusReport {
	pid := holder(d.path("lock"))
	if pid == 0 {
		return statusReport{Problem: fmt.Sprintf("no node runs on %s: start one with `dsec up --detach%s`", d, stateHint(d))}
	}
	r := statusReport{Running: true}
	up, err := d.askUp()
	if err != nil {
		r.Problem = fmt.Sprintf("the node (process %d) is starting", pid)
		return r
	}
	r.Up = &up
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := r.askNode(ctx, d); err != nil {
		r.Problem = "the node does not answer: " + message(err) + " (logs: " + d.path("log") + ")"
	}
	return r
}

// askNode asks the node through its API, as its users do. That the key of the state directory was revoked is no fault of
// the node: then its edge is asked.
func (r *statusReport) askNode(ctx context.Context, d stateDir) error {
	cfg, err := client.ReadConfig(d.path("client.json"))
	if err != nil {
		return err
	}
	c, err := client.New(client.Options{Config: cfg, Patience: 3 * time.Second})
	if err != nil {
		return err
	}
	defer c.Close()
	resp, err := c.Node.GetNode(ctx, &dsecv1.GetNodeRequest{})
	if connect.CodeOf(err) == connect.CodeUnauthenticated {
		hc := edgeHTTP(d)
		defer hc.CloseIdleConnections()
		resp, err = dsecv1connect.NewNodeServiceClient(hc, edgeURL, patient(3*time.Second)).GetNode(ctx, &dsecv1.GetNodeRequest{})
	}
	if err == nil {
		r.Node = &jsonNode{resp}
	}
	return err
}

func (r statusReport) print(cmd *cobra.Command, d stateDir) error {
	w := cmd.OutOrStdout()
	if r.Up != nil {
		fmt.Fprintf(w, "node on %s, process %d, up %s, version %s\nAPI %s, ports %s\n", d, r.Up.PID, durationText(time.Since(r.Up.Started)), r.Up.Version, r.Up.URL, r.Up.PortsURL)
		rows := make([][]string, len(r.Up.Roles))
		for i, s := range r.Up.Roles {
			state, since := "down", "-"
			if s.PID != 0 {
				state, since = fmt.Sprint(s.PID), durationText(time.Since(s.Since))
			}
			rows[i] = []string{s.Name, state, since, fmt.Sprint(s.Restarts), s.LastEnd}
		}
		if err := table(w, "ROLE PROCESS UP RESTARTS LAST-END", rows); err != nil {
			return err
		}
	}
	if n := r.Node; n != nil {
		fmt.Fprintf(w, "edge %s: %d sandboxes, %s ready, %s of %s memory free, pool %s of %s used, %d CPUs, kernel %s\n", n.GetEdge(), n.GetLiveSandboxes(), readyText(n.GetWarm()),
			bytesText(n.GetMemoryAvailableBytes()), bytesText(n.GetMemoryBytes()), bytesText(n.GetPoolUsedBytes()), bytesText(n.GetPoolBytes()), n.GetCpus(), printable(n.GetKernel()))
	}
	if n := r.Node; n != nil && n.GetSavedSpaceBytes() > 0 {
		fmt.Fprintf(w, "saved of machines: %s of %s used\n", bytesText(n.GetSavedSpaceUsedBytes()), bytesText(n.GetSavedSpaceBytes()))
	}
	if r.Node != nil {
		fmt.Fprintln(w, networkText(r.Node.GetNetwork(), r.Node.GetNetworkAbsent()))
	}
	if r.Problem != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "dsec: "+r.Problem)
	}
	return nil
}

// networkText says what enforces the network of sandboxes, or why there is none.
func networkText(n *dsecv1.NodeNetwork, absent string) string {
	if n == nil {
		if absent != "" {
			absent = ": " + printable(absent)
		}
		return "network: sandboxes have loopback only" + absent
	}
	text := "network: rules are enforced by " + printable(n.GetEnforcedBy())
	if len(n.GetLacks()) > 0 {
		text += ", without " + printable(strings.Join(n.GetLacks(), ", "))
	}
	return text
}

// readyText is what is ready for creations, by backend.
func readyText(warm map[string]int32) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(warm)) {
		out = append(out, fmt.Sprintf("%d %s", warm[name], name))
	}
	return cmp.Or(strings.Join(out, ", "), "nothing")
}
