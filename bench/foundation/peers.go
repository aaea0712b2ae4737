package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"
)

// peers are other runtimes over the same root file system, unpacked on disk.
type peers struct {
	dir        string
	rootfs     string
	bundle     string
	running    string // id of a runc container for runc exec
	containerd *exec.Cmd
	socket     string
	next       atomic.Int64
}

func startPeers(ctx context.Context, work, tarPath string) (_ *peers, err error) {
	p := &peers{dir: filepath.Join(work, "peers"), running: fmt.Sprintf("bench-%d", os.Getpid())}
	p.rootfs, p.bundle = filepath.Join(p.dir, "rootfs"), filepath.Join(p.dir, "bundle")
	defer func() {
		if err != nil {
			p.stop()
		}
	}()
	for _, d := range []string{p.rootfs, p.bundle} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	if err := command(ctx, "tar", "-xf", tarPath, "-C", p.rootfs); err != nil {
		return nil, err
	}
	if err := p.writeBundle(ctx, p.bundle, program); err != nil {
		return nil, err
	}
	idle := filepath.Join(p.dir, "idle")
	if err := os.MkdirAll(idle, 0o755); err != nil {
		return nil, err
	}
	if err := p.writeBundle(ctx, idle, "/bin/sleep", "7200"); err != nil {
		return nil, err
	}
	// Without pipes: the container would hold them open, and Wait would wait for it.
	if err := exec.CommandContext(ctx, "runc", "--root", p.dir+"/runc", "run", "-d", "-b", idle, p.running).Run(); err != nil {
		return nil, fmt.Errorf("runc run -d: %w", err)
	}
	return p, p.startContainerd(ctx)
}

// writeBundle makes an OCI bundle that runs argv over the root file system, read-only, without a terminal.
func (p *peers) writeBundle(ctx context.Context, dir string, argv ...string) error {
	cmd := exec.CommandContext(ctx, "runc", "spec")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("runc spec: %w: %s", err, out)
	}
	path := filepath.Join(dir, "config.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := json.Unmarshal(b, &spec); err != nil {
		return err
	}
	spec["root"] = map[string]any{"path": p.rootfs, "readonly": true}
	proc, ok := spec["process"].(map[string]any)
	if !ok {
		return errors.New("runc spec: no process")
	}
	proc["terminal"], proc["args"] = false, argv
	delete(proc, "rlimits") // the default asks for more than this machine may give
	if b, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

func (p *peers) startContainerd(ctx context.Context) error {
	p.socket = filepath.Join(p.dir, "c.sock")
	conf := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.snapshotter.v1.btrfs\", \"io.containerd.snapshotter.v1.zfs\", \"io.containerd.snapshotter.v1.devmapper\", \"io.containerd.snapshotter.v1.aufs\"]\n[grpc]\naddress = %q\n", p.dir+"/cd-root", p.dir+"/cd-state", p.socket)
	path := filepath.Join(p.dir, "containerd.toml")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(p.dir, "containerd.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	p.containerd = exec.Command("containerd", "-c", path)
	p.containerd.Stdout, p.containerd.Stderr = log, log
	if err := p.containerd.Start(); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		if command(ctx, "ctr", "-a", p.socket, "version") == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("containerd does not answer; see %s", log.Name())
		}
	}
}

func (p *peers) stop() {
	_ = command(context.Background(), "runc", "--root", p.dir+"/runc", "delete", "-f", p.running)
	if p.containerd != nil && p.containerd.Process != nil {
		_ = p.containerd.Process.Signal(os.Interrupt)
		done := make(chan struct{})
		go func() { _ = p.containerd.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			_ = p.containerd.Process.Kill()
			<-done
		}
	}
}

func (p *peers) name(kind string) string {
	return fmt.Sprintf("bench-%s-%d-%d", kind, os.Getpid(), p.next.Add(1))
}

func (p *peers) runcRun(ctx context.Context, _ int) error {
	return command(ctx, "runc", "--root", p.dir+"/runc", "run", "-b", p.bundle, p.name("r"))
}

func (p *peers) runcExec(ctx context.Context, _ int) error {
	return command(ctx, "runc", "--root", p.dir+"/runc", "exec", p.running, program)
}

func (p *peers) bwrap(ctx context.Context, _ int) error {
	return command(ctx, "bwrap", "--ro-bind", p.rootfs, "/", "--proc", "/proc", "--dev", "/dev", "--unshare-all", program)
}

func (p *peers) ctrRun(ctx context.Context, _ int) error {
	return command(ctx, "ctr", "-a", p.socket, "run", "--rm", "--rootfs", "--read-only", p.rootfs, p.name("c"), program)
}

// command runs a program; its output is in the error.
func command(ctx context.Context, name string, args ...string) error {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, 5*time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %.300s", name, err, out.String())
	}
	return nil
}
