package container

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/opendsec/dsec/backend/container/cgroup"
	"github.com/opendsec/dsec/backend/container/pool"
	"github.com/opendsec/dsec/backend/container/spawn"
	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// shell is a dsec-init with everything but an environment.
type shell struct {
	id     sandbox.ID
	slot   int
	net    bool // it has a link
	pid    int
	pidfd  *os.File
	userns *os.File
	groups *cgroup.Sandbox
	layer  *pool.Layer
	own    *os.File // the writable layer's mount in the shell's own id mapping; closed, it would be unmounted
	upper  *os.File // beneath it, as overlayfs takes them
	work   *os.File
	conn   *aether.Conn
	limits *sandbox.Limits // set ahead of the claim; nil = none
}

// prepareTimeout bounds the making of one shell.
const prepareTimeout = 20 * time.Second

// prepare makes a shell. On error nothing is left of it.
func (d *Driver) prepare(ctx context.Context, net bool) (*shell, error) {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	slot, err := d.slots.take()
	if err != nil {
		return nil, err
	}
	sh := &shell{id: sandbox.NewID(d.cfg.Edge), slot: slot, net: net}
	d.mu.Lock()
	d.shells[sh.id] = true
	d.mu.Unlock()
	if err := d.build(ctx, sh); err != nil {
		err = d.withWords(sh.id, err)
		if rerr := d.removeParts(sh); rerr != nil {
			d.log.Error("half-made shell is left for the next sweep", "id", sh.id, "err", rerr)
			return nil, err // its slot stays taken
		}
		d.slots.release(slot)
		return nil, err
	}
	return sh, nil
}

// build makes the parts of a shell, recording it first.
func (d *Driver) build(ctx context.Context, sh *shell) error {
	rec := &record{ID: sh.id, Slot: sh.slot, Net: sh.net, Boot: d.boot}
	dir := d.shellDir(sh.id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := d.save(rec); err != nil {
		return err
	}
	if err := failpoint.Hit("container/recorded"); err != nil {
		return err
	}
	sh.groups = d.tree.Sandbox(string(sh.id))
	if err := sh.groups.Make(); err != nil {
		return err
	}
	if err := failpoint.Hit("container/grouped"); err != nil {
		return err
	}
	var err error
	if sh.layer, err = d.pool.Make(string(sh.id)); err != nil {
		return poolError(err)
	}
	if err := sh.writeEtc(string(sh.id), d.resolvConf(sh.net)); err != nil {
		return poolError(err)
	}
	if err := failpoint.Hit("container/layered"); err != nil {
		return err
	}
	if err := d.spawnInit(ctx, sh, dir); err != nil {
		return err
	}
	if err := failpoint.Hit("container/spawned"); err != nil {
		return err
	}
	rec.PID = sh.pid
	if rec.Start, err = linux.StartTime(sh.pid); err != nil {
		return err
	}
	if err := d.save(rec); err != nil {
		return err
	}
	if sh.userns, err = os.Open("/proc/" + strconv.Itoa(sh.pid) + "/ns/user"); err != nil {
		return err
	}
	if err := sh.openLayer(); err != nil {
		return err
	}
	nc, err := dialChannel(ctx, dir)
	if err != nil {
		return err
	}
	if sh.conn, err = aether.Open(ctx, nc, d.nextEpoch()); err != nil {
		nc.Close()
		return fmt.Errorf("dsec-init of %s does not answer: %w", sh.id, err)
	}
	if err := sh.groups.Divide(); err != nil {
		return err
	}
	if sh.net {
		if err := d.attach(sh); err != nil {
			return err
		}
	}
	if l := d.limits.Load(); l != nil {
		if err := sh.limit(*l); err != nil {
			return err
		}
		sh.limits = l
	}
	if d.cfg.FirstGroup != "" {
		sh.groups.PrepareCommand(d.cfg.FirstGroup)
	}
	if err := failpoint.Hit("container/ready"); err != nil {
		return err
	}
	return nil
}

// spawnInit makes the listening socket and the process.
func (d *Driver) spawnInit(ctx context.Context, sh *shell, dir string) error {
	l, err := listenChannel(dir)
	if err != nil {
		return err
	}
	defer l.Close()
	group, err := sh.groups.Birth()
	if err != nil {
		return err
	}
	defer group.Close()
	leave, err := sh.groups.InitProcs()
	if err != nil {
		return err
	}
	defer leave.Close()
	tasks, err := sh.groups.TaskFiles()
	if err != nil {
		return err
	}
	defer closeAll(tasks)
	words, err := d.makeWords(sh.id)
	if err != nil {
		return err
	}
	defer words.Close()
	req := &spawn.Request{
		ID: string(sh.id), UIDBase: base(sh.slot), Cgroup: group, Log: words, Listen: l,
		Args:  []string{"-stage", stageDir, "-group", "4"},
		Files: []*os.File{leave},
	}
	next := 5
	if d.filter != nil {
		req.Files = append(req.Files, d.filter)
		req.Args = append(req.Args, "-seccomp", strconv.Itoa(next))
		next++
	}
	if d.profile != "" {
		req.Args = append(req.Args, "-apparmor", d.profile)
	}
	if len(tasks) > 0 {
		list := ""
		for i := range tasks {
			if i > 0 {
				list += ","
			}
			list += strconv.Itoa(next + i)
		}
		req.Files = append(req.Files, tasks...)
		req.Args = append(req.Args, "-tasks", list)
	}
	sh.pid, sh.pidfd, err = d.spawner.Spawn(ctx, req)
	return err
}

// stageDir is where dsec-init mounts its staging area, in its own mount namespace: any directory that
// exists on every host and that an unprivileged id can reach.
const stageDir = "/tmp"

// limit bounds what the sandbox may use.
func (sh *shell) limit(l sandbox.Limits) error {
	if err := sh.groups.SetLimits(l); err != nil {
		return err
	}
	return sh.layer.Limit(l.DiskBytes)
}

// openLayer opens the writable layer through the shell's id mapping.
func (sh *shell) openLayer() error {
	var err error
	if sh.own, err = sh.layer.Mount(sh.userns); err != nil {
		return err
	}
	if sh.upper, err = linux.OpenAt(sh.own, "upper"); err != nil {
		return err
	}
	sh.work, err = linux.OpenAt(sh.own, "work")
	return err
}

// release closes what only a claim needs.
func (sh *shell) release() {
	closeAll([]*os.File{sh.upper, sh.work, sh.own, sh.userns})
	sh.upper, sh.work, sh.own, sh.userns = nil, nil, nil, nil
}

// channelName is the socket's name in the shell's directory.
const channelName = "channel"

// listenChannel makes the socket that dsec-init listens on. Its path goes through a descriptor, because
// socket addresses end at 108 bytes.
func listenChannel(dir string) (*os.File, error) {
	dh, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer dh.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dh.Fd(), channelName), Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	return l.File()
}

func dialChannel(ctx context.Context, dir string) (net.Conn, error) {
	dh, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer dh.Close()
	var dl net.Dialer
	return dl.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dh.Fd(), channelName))
}

// removeParts ends the process and removes everything that the shell or sandbox consists of. Idempotent.
func (d *Driver) removeParts(sh *shell) error {
	if sh.conn != nil {
		sh.conn.Close()
		sh.conn = nil
	}
	sh.release()
	if err := d.removeByID(sh.id, sh.pidfd); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.shells, sh.id)
	d.mu.Unlock()
	if sh.pidfd != nil {
		sh.pidfd.Close()
		sh.pidfd = nil
	}
	return nil
}

// endTimeout bounds how long killed processes may take to go: a busy node, thousands at once.
const endTimeout = 30 * time.Second

// removeByID removes all parts of an id, whoever made them; pidfd may be nil.
func (d *Driver) removeByID(id sandbox.ID, pidfd *os.File) error {
	if err := d.kill(id, pidfd); err != nil {
		return err
	}
	return d.removeRest(id)
}

// kill ends all processes of an id and waits until they are gone.
func (d *Driver) kill(id sandbox.ID, pidfd *os.File) error {
	groups := d.tree.Sandbox(string(id))
	if pidfd != nil {
		// The whole pid namespace ends with its first process.
		_ = linux.SignalPID(pidfd, 9)
	}
	if err := groups.Kill(); err != nil {
		return err
	}
	return groups.WaitEmpty(endTimeout)
}

// removeRest removes what is left of an id whose processes are gone.
func (d *Driver) removeRest(id sandbox.ID) error {
	if err := failpoint.Hit("container/killed"); err != nil {
		return err
	}
	if err := d.detach(id); err != nil {
		return err
	}
	if err := d.tree.Sandbox(string(id)).Remove(); err != nil {
		return err
	}
	if err := d.pool.Delete(string(id)); err != nil {
		return err
	}
	if err := failpoint.Hit("container/unlayered"); err != nil {
		return err
	}
	dir := d.shellDir(id)
	if err := os.Remove(filepath.Join(dir, channelName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir) // the record goes last
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
