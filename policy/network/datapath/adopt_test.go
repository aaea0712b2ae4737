package datapath_test

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/link"
)

// TestMain runs this test's other processes too.
func TestMain(m *testing.M) {
	switch os.Getenv("DATAPATH_TEST_ROLE") {
	case "owner":
		if err := owner(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
		os.Exit(0)
	case "dialer":
		dialer()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// owner opens the datapath, sets a policy, and waits to be killed.
func owner() error {
	host := os.NewFile(3, "host")
	up := link.DefaultUplink()
	up.Host = host
	r, err := link.Open(link.Config{Dir: os.Getenv("ROUTER_DIR"), Plan: link.DefaultPlan(), Uplink: up})
	if err != nil {
		return err
	}
	dp, err := openers[os.Getenv("DATAPATH_KIND")](datapath.Config{Dir: os.Getenv("DATAPATH_DIR"), Router: r})
	if err != nil {
		return err
	}
	if err := dp.Attach(31, datapath.Attachment{Index: link.Index(31)}); err != nil {
		return err
	}
	if err := dp.Set(31, 5, []network.Entry{allow(site4 + "/32")}); err != nil {
		return err
	}
	openings := []network.Opening{{Protocol: network.TCP, From: portTCP, To: portTCP, Verdict: network.VerdictAllow}}
	if err := dp.Learn(31, 5, netip.MustParseAddr(site6), openings, time.Now().Add(time.Hour)); err != nil {
		return err
	}
	fmt.Println("ready")
	return nil
}

// TestKilledOwner kills the process that owns the datapath: enforcement goes on, and another takes over.
func TestKilledOwner(t *testing.T) {
	for kind, open := range openers {
		t.Run(kind, func(t *testing.T) {
			needTool(t, kind)
			killedOwner(t, kind, open)
		})
	}
}

var openers = map[string]opener{"ebpf": datapath.OpenEBPF, "nftables": datapath.OpenNftables}

func killedOwner(t *testing.T, kind string, open opener) {
	w := newNet(t)
	server(t, w.internet, portTCP)
	b := &box{NetSpace: newSpace(t), w: w, slot: 31}
	must(t, w.router.Make(31, b.File()))
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "DATAPATH_TEST_ROLE=owner", "ROUTER_DIR="+w.linkCfg.Dir, "DATAPATH_DIR="+dir, "DATAPATH_KIND="+kind)
	cmd.ExtraFiles = []*os.File{w.host.File()}
	in, err := cmd.StdinPipe()
	must(t, err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	said := make([]byte, 1000)
	n, _ := out.Read(said)
	if string(said[:n]) != "ready\n" {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("the owner says %q", said[:n])
	}
	c, err := dial(b.NetSpace, "tcp", at(site4, portTCP))
	must(t, err)
	defer c.Close()
	must(t, echoes(c, "before"))
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()

	must(t, echoes(c, "nobody is there"))
	b.reaches("tcp", at(site6, portTCP))
	b.refused("tcp", at(other4, portTCP))

	cfg := datapath.Config{Dir: dir, Router: w.router}
	w.dp, err = open(cfg)
	must(t, err)
	defer func() { must(t, w.dp.Destroy()) }()
	must(t, echoes(c, "after"))
	if g, err := w.dp.Generation(31); err != nil || g != 5 {
		t.Fatalf("generation %d, %v", g, err)
	}
	must(t, w.dp.Set(31, 5, []network.Entry{allow(site4 + "/32")})) // known by its content
	if flows, err := w.dp.Flows(31); err != nil || len(flows) < 2 {
		t.Errorf("flows %v, %v", flows, err)
	}
	b.reaches("tcp", at(site6, portTCP))
	b.gen = 5
	b.set(allow(other4 + "/32"))
	if err := echoes(c, "x"); err == nil {
		t.Error("the successor's policy does not hold")
	}
	b.reaches("tcp", at(other4, portTCP))
	must(t, w.dp.Clear(31))
	b.refusedOrSilent("tcp", at(other4, portTCP))
}

// refusedOrSilent is for slots that are out: nobody answers.
func (b *box) refusedOrSilent(_, address string) {
	b.w.t.Helper()
	host, _, _ := strings.Cut(address, ":")
	if c, err := dialBriefly(b.NetSpace, host); err == nil {
		c.Close()
		b.w.t.Errorf("%s is reachable", address)
	}
}

// TestUpgrade opens a datapath of another version over one that is in use: until its policy is set again, a
// sandbox reaches nothing.
func TestUpgrade(t *testing.T) {
	w := newWorld(t, datapath.OpenEBPF)
	server(t, w.internet, portTCP)
	b := w.sandbox(32)
	b.set(allow("0.0.0.0/0"))
	b.reaches("tcp", at(site4, portTCP))
	must(t, w.dp.Close())
	cfg := w.cfg
	cfg.ProxyPort++ // what the programs are configured with is part of their version
	next, err := datapath.OpenEBPF(cfg)
	must(t, err)
	w.dp = next
	if got := next.Slots(); len(got) != 0 {
		t.Errorf("slots %v", got)
	}
	b.refusedOrSilent("tcp", at(site4, portTCP))
	must(t, next.Attach(32, datapath.Attachment{Index: link.Index(32)}))
	b.set(allow("0.0.0.0/0"))
	b.reaches("tcp", at(site4, portTCP))
	dirs, err := os.ReadDir(filepath.Join(cfg.Dir, "bpf"))
	must(t, err)
	n := 0
	for _, d := range dirs {
		if d.IsDir() {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d versions are pinned", n)
	}
}

// pinned are the kernel's numbers of what a datapath pinned.
func pinned(t *testing.T, dir string) (maps []ebpf.MapID, programs []ebpf.ProgramID) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "bpf", "*", "*"))
	must(t, err)
	for _, path := range files {
		if p, err := ebpf.LoadPinnedProgram(path, nil); err == nil {
			info, err := p.Info()
			must(t, err)
			id, _ := info.ID()
			programs = append(programs, id)
			p.Close()
		} else if m, err := ebpf.LoadPinnedMap(path, nil); err == nil {
			info, err := m.Info()
			must(t, err)
			id, _ := info.ID()
			maps = append(maps, id)
			m.Close()
		}
	}
	return maps, programs
}

// policiesOf are the numbers of the policies that a datapath keeps, and of their tries.
func policiesOf(t *testing.T, dir string) (tries []ebpf.MapID) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "bpf", "*", "policies"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	m, err := ebpf.LoadPinnedMap(files[0], nil)
	must(t, err)
	defer m.Close()
	var number uint32
	var trie ebpf.MapID
	for it := m.Iterate(); it.Next(&number, &trie); {
		tries = append(tries, trie)
	}
	return tries
}

// TestNothingIsLeft makes and removes sandboxes a thousand times.
func TestNothingIsLeft(t *testing.T) {
	needRoot(t)
	var maps []ebpf.MapID
	var programs []ebpf.ProgramID
	t.Run("world", func(t *testing.T) {
		w := newWorld(t, datapath.OpenEBPF)
		maps, programs = pinned(t, w.cfg.Dir)
		if len(maps) < 10 || len(programs) != 8 {
			t.Fatalf("%d maps and %d programs are pinned", len(maps), len(programs))
		}
		n := 1000
		if testing.Short() {
			n = 100
		}
		for i := range n {
			slot := i % 40
			s, err := linux.NewNetSpace()
			must(t, err)
			must(t, w.router.Make(slot, s.File()))
			must(t, w.dp.Attach(slot, datapath.Attachment{Index: link.Index(slot)}))
			must(t, w.dp.Set(slot, 1, []network.Entry{allow(site4 + "/32"), entry("20.0.0.0/8", network.TCP, uint16(i), 65535, network.VerdictAllow)}))
			if i == n-1 {
				maps = append(maps, policiesOf(t, w.cfg.Dir)...)
			}
			must(t, w.dp.Clear(slot))
			must(t, w.router.Remove(slot))
			s.Close()
		}
		within(t, "only the spare policies are left", func() bool { return len(policiesOf(t, w.cfg.Dir)) <= 32 })
		if got, err := w.router.Slots(); err != nil || len(got) != 0 {
			t.Errorf("links %v, %v", got, err)
		}
	})
	for _, id := range programs {
		within(t, "a program is gone", func() bool {
			p, err := ebpf.NewProgramFromID(id)
			if err == nil {
				p.Close()
			}
			return errors.Is(err, os.ErrNotExist)
		})
	}
	for _, id := range maps {
		within(t, "a map is gone", func() bool {
			m, err := ebpf.NewMapFromID(id)
			if err == nil {
				m.Close()
			}
			return errors.Is(err, os.ErrNotExist)
		})
	}
}

// dialer tries to connect, and says what happened.
func dialer() {
	for _, a := range os.Args[1:] {
		family, kind := syscall.AF_INET, syscall.SOCK_STREAM
		proto, address, _ := strings.Cut(a, " ")
		if proto == "udp" {
			kind = syscall.SOCK_DGRAM
		}
		to := netip.MustParseAddrPort(address)
		var sa syscall.Sockaddr = &syscall.SockaddrInet4{Addr: [4]byte(to.Addr().AsSlice()), Port: int(to.Port())}
		if to.Addr().Is6() {
			family, sa = syscall.AF_INET6, &syscall.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
		}
		fd, err := syscall.Socket(family, kind, 0)
		if err == nil && kind == syscall.SOCK_DGRAM {
			err = syscall.Sendto(fd, []byte("x"), 0, sa)
		} else if err == nil {
			err = syscall.Connect(fd, sa)
		}
		var errno syscall.Errno
		errors.As(err, &errno)
		fmt.Println(strconv.Itoa(int(errno)))
	}
}

// TestGroup has connect and sendto fail at once in a sandbox's control group, and nowhere else.
func TestGroup(t *testing.T) {
	w := newWorld(t, datapath.OpenEBPF)
	server(t, w.internet, portTCP)
	root := ""
	for _, r := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(r + "/cgroup.procs"); err == nil {
			root = r
			break
		}
	}
	if root == "" {
		t.Skip("no cgroup v2 tree")
	}
	dir, err := os.MkdirTemp(root, "datapath-test-")
	must(t, err)
	below := filepath.Join(dir, "command")
	must(t, os.Mkdir(below, 0o755))
	t.Cleanup(func() {
		within(t, "the group is empty", func() bool { return os.Remove(below) == nil || errors.Is(os.Remove(below), os.ErrNotExist) })
		must(t, os.Remove(dir))
	})
	group, err := os.Open(dir)
	must(t, err)
	defer group.Close()
	command, err := os.Open(below)
	must(t, err)
	defer command.Close()
	b := &box{NetSpace: newSpace(t), w: w, slot: 33}
	must(t, w.router.Make(33, b.File()))
	must(t, w.dp.Attach(33, datapath.Attachment{Index: link.Index(33), Group: group, Space: b.File()}))
	b.set(entry(site4+"/32", network.TCP, portTCP, portTCP, network.VerdictAllow), allow(site6+"/128"))
	lo := newSpace(t) // another namespace in the group: left to the link
	must(t, netlink(lo, linux.UpLink(1)))
	server(t, b.NetSpace, portTCP+5)
	eperm, refused := strconv.Itoa(int(syscall.EPERM)), strconv.Itoa(int(syscall.ECONNREFUSED))
	run := func(s *linux.NetSpace, cases map[string]string) {
		t.Helper()
		for address, want := range cases {
			cmd := exec.Command("/proc/self/exe", address)
			cmd.Env = append(os.Environ(), "DATAPATH_TEST_ROLE=dialer")
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(command.Fd())}
			var out strings.Builder
			cmd.Stdout = &out
			must(t, s.Do(cmd.Start))
			if err := cmd.Wait(); err != nil || strings.TrimSpace(out.String()) != want {
				t.Errorf("%s: %q, %v; want error number %s", address, out.String(), err, want)
			}
		}
	}
	run(b.NetSpace, map[string]string{
		"tcp " + at(site4, portTCP):                "0",
		"tcp " + at(site6, portTCP):                "0",
		"udp " + at(site6, portTCP):                "0",
		"tcp " + at(other4, portTCP):               eperm,
		"tcp " + at(site4, portTCP+1):              eperm,
		"tcp " + at(other6, portTCP):               eperm,
		"udp " + at(site4, portTCP):                eperm,
		"udp " + at(other6, portTCP):               eperm,
		"tcp 169.254.169.254:80":                   eperm,
		"tcp [::ffff:203.0.113.20]:8080":           eperm,
		"tcp [::ffff:203.0.113.10]:8080":           "0",
		"tcp " + at("127.0.0.1", portTCP+5):        "0",
		"tcp " + at("::1", portTCP+5):              "0",
		"tcp " + at(b.addr4().String(), portTCP+5): "0",
		"tcp " + at("127.0.0.1", portTCP+6):        refused,
	})
	run(lo, map[string]string{"tcp 127.0.0.1:1": refused})
	if b.denied(datapath.ByPolicy) < 4 || b.denied(datapath.Forbidden) == 0 {
		t.Error("the denials are not counted")
	}
	// Another sandbox of the slot: the group's programs do not speak for it.
	must(t, w.dp.Clear(33))
	run(b.NetSpace, map[string]string{"tcp " + at("127.0.0.1", portTCP+6): refused})
}
