package testkit

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/opendsec/dsec/client"
)

// Node is a node of its own: `dsec up --detach` on a state directory.
type Node struct {
	Client *client.Client
	URL    string
	dsec   string
	state  string
}

// StartNode starts a node. args are added to `dsec up`.
func StartNode(ctx context.Context, dsec, state string, args ...string) (*Node, error) {
	dsec, err := filepath.Abs(dsec)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	n := &Node{dsec: dsec, state: state}
	up := append([]string{"up", "--state", state, "--listen", "127.0.0.1:0", "--ports-listen", "127.0.0.1:0", "--detach", "--no-user-config"}, args...)
	if _, err := n.Run(ctx, up...); err != nil {
		return nil, err
	}
	cfg, err := client.ReadConfig(filepath.Join(state, "client.json"))
	if err == nil {
		n.URL = cfg.URL
		n.Client, err = client.New(client.Options{Config: cfg})
	}
	if err != nil {
		_, _ = n.Stop()
		return nil, err
	}
	return n, nil
}

// Run runs the command-line client with the user's own configuration out of the way, and returns its standard
// output.
func (n *Node) Run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, n.dsec, args...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+filepath.Join(n.state, "config"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("dsec %s: %w\n%s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String(), nil
}

// Stop runs `dsec down` and returns what is left of the node on the machine.
func (n *Node) Stop() ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if n.Client != nil {
		n.Client.Close()
	}
	dirs := traces(n.state) // before: down removes what tells of them
	if _, err := n.Run(ctx, "down", "--state", n.state); err != nil {
		return nil, err
	}
	return Leftovers(n.state, dirs...)
}
