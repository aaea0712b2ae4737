package main

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

// node is the demo's own node.
type node struct {
	o      options
	client *client.Client
}

// startNode runs `dsec up --detach` on a state directory of the demo's own.
func startNode(ctx context.Context, o options) (*node, error) {
	done := step("starting a node")
	if err := os.MkdirAll(o.state, 0o700); err != nil {
		return nil, err
	}
	n := &node{o: o}
	if _, err := n.dsec(ctx, "up", "--state", o.state, "--listen", "127.0.0.1:0", "--ports", "127.0.0.1:0", "--detach"); err != nil {
		return nil, err
	}
	cfg, err := client.ReadConfig(filepath.Join(o.state, "client.json"))
	if err == nil {
		n.client, err = client.New(client.Options{Config: cfg})
	}
	if err != nil {
		_, _ = n.stop()
		return nil, err
	}
	done(cfg.URL)
	return n, nil
}

// dsec runs the command-line client with the user's configuration out of the way.
func (n *node) dsec(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, n.o.dsec, args...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+filepath.Join(n.o.state, "config"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("dsec %s: %w\n%s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String(), nil
}

// stop runs `dsec down` and looks for what is left of the node on the machine.
func (n *node) stop() ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if n.client != nil {
		n.client.Close()
	}
	if _, err := n.dsec(ctx, "down", "--state", n.o.state); err != nil {
		return nil, err
	}
	return leftovers(n.o.state)
}

// leftovers finds processes, control groups, mounts and loop devices of a state directory.
func leftovers(state string) ([]string, error) {
	var out []string
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err == nil && p != fmt.Sprintf("/proc/%d/cmdline", os.Getpid()) && strings.Contains(string(b), state+"/") {
			out = append(out, "process "+strings.ReplaceAll(strings.TrimRight(string(b), "\x00"), "\x00", " "))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], state+"/") {
			out = append(out, "mount "+f[1])
		}
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, l := range loops {
		if b, err := os.ReadFile(l); err == nil && strings.HasPrefix(string(b), state+"/") {
			out = append(out, "loop device over "+strings.TrimSpace(string(b)))
		}
	}
	shells, err := os.ReadDir(filepath.Join(state, "run", "shells"))
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	for _, s := range shells {
		out = append(out, "shell "+s.Name())
	}
	return out, nil
}
