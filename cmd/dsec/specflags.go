package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

// maxCores keeps --cpus within what the API's type holds; what a node allows is less, and said by it.
const maxCores = 1e6

// specFlags are the flags of create and run that say what the sandbox is.
type specFlags struct {
	backend, image, base, workspace, environment string
	snapshot                                     string
	toolkits                                     []string
	memory, disk, shm                            string
	readRate, writeRate                          string
	cpus                                         float64
	pids                                         int64
	env, secrets, labels, allow                  []string
	ttl, idle, createTimeout                     string
	onTimeout, paused                            string
	manualResume                                 bool
	user, workdir, hostname                      string
	noNewPrivs                                   bool
	netLimits                                    netLimits
	privateNetwork, networkName                  string
	cloudInit, cloudInitMeta, cloudInitNetwork   string
}

func (f *specFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.backend, "backend", "container", "kind of machine: container, microvm, fullvm, fake (with --snapshot: the snapshot's)")
	fl.StringVar(&f.image, "image", "", "base by the reference `REF` that it was imported from, or by its name")
	fl.StringVar(&f.environment, "environment", "", "named environment `NAME` (dsec env); --workspace and the like add to it")
	fl.StringVar(&f.base, "base", "", "base layer `NAME[@V]`")
	fl.StringVar(&f.workspace, "workspace", "", "workspace layer `NAME[@V]`")
	fl.StringArrayVar(&f.toolkits, "toolkit", nil, "toolkit layer `NAME[@V]` (may be repeated, bottom to top)")
	fl.StringVar(&f.snapshot, "snapshot", "", "disk of a sandbox as it was: a snapshot's `ID`, instead of layers")
	fl.StringVarP(&f.memory, "memory", "m", "", "memory limit, like 512m")
	fl.Float64Var(&f.cpus, "cpus", 0, "CPU limit in cores, like 1.5; more than the node has is never used")
	fl.StringVar(&f.disk, "disk", "", "size of the writable layer, like 4g")
	fl.StringVar(&f.shm, "shm", "", "size of /dev/shm")
	fl.StringVar(&f.readRate, "read-rate", "", "bytes that may be read from disks in a second, like 50m (default: no limit)")
	fl.StringVar(&f.writeRate, "write-rate", "", "bytes that may be written to disks in a second")
	fl.Int64Var(&f.pids, "pids", 0, "limit of processes and threads")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "environment variable `NAME=VALUE`, or NAME to pass on this one's")
	fl.StringArrayVar(&f.secrets, "secret", nil, "like --env, but never shown or recorded: `NAME` (from this environment) or NAME=VALUE")
	fl.StringArrayVarP(&f.labels, "label", "l", nil, "label `NAME=VALUE`")
	fl.StringArrayVar(&f.allow, "allow", nil, "what it may reach: a `RULE` like pypi, example.org:22, 10.0.0.0/24:5432/tcp, !github, open (without any: loopback only)")
	f.netLimits.register(cmd, "net-")
	fl.StringVar(&f.privateNetwork, "private-network", "", "private network `NAME`: sandboxes of one node that name the same reach each other, whatever --allow says")
	fl.StringVar(&f.networkName, "network-name", "", "what the others there call it (default: its host name)")
	fl.StringVar(&f.ttl, "ttl", "", "time to live from readiness, like 10m")
	fl.StringVar(&f.idle, "idle", "", "end after this long without activity")
	fl.StringVar(&f.onTimeout, "on-timeout", "stop", "what happens when --ttl or --idle runs out: stop, or `pause`")
	fl.StringVar(&f.paused, "paused", "", "how long it may stay paused before it ends, like 168h (default: 30 days)")
	fl.BoolVar(&f.manualResume, "manual-resume", false, "only dsec resume wakes it when it is paused, and no other request")
	fl.StringVar(&f.createTimeout, "create-timeout", "", "how long creation may take")
	fl.StringVarP(&f.user, "user", "u", "", "default user of commands: name or id, USER:GROUP")
	fl.StringVarP(&f.workdir, "workdir", "w", "", "default working directory")
	fl.StringVar(&f.hostname, "hostname", "", "host name (default: the sandbox's id)")
	fl.StringVar(&f.cloudInit, "cloud-init", "", "user data of cloud-init, a `FILE`; for --backend fullvm")
	fl.StringVar(&f.cloudInitMeta, "cloud-init-meta", "", "more lines of its meta data, a `FILE`")
	fl.StringVar(&f.cloudInitNetwork, "cloud-init-network", "", "its network configuration, a `FILE`")
	fl.BoolVar(&f.noNewPrivs, "no-new-privileges", false, "setuid programs gain nothing")
}

// names tells whether the flags say what the sandbox is made of.
func (f *specFlags) names() bool {
	return f.environment != "" || f.image != "" || f.base != "" || f.snapshot != ""
}

// spec turns the flags into what the API takes. What was not given is left to the node.
func (f *specFlags) spec(cmd *cobra.Command) (*dsecv1.SandboxSpec, error) {
	backend, ok := dsecv1.Backend_value["BACKEND_"+strings.ToUpper(f.backend)]
	if !ok || backend == 0 {
		return nil, fmt.Errorf("backend %q: want container, microvm, fullvm or fake", f.backend)
	}
	if f.snapshot != "" && !cmd.Flags().Changed("backend") {
		backend = 0 // the snapshot's
	}
	s := &dsecv1.SandboxSpec{
		Backend:     dsecv1.Backend(backend),
		Environment: &dsecv1.Environment{Name: f.environment, Image: f.image, Base: f.base, Workspace: f.workspace, Toolkits: f.toolkits, Snapshot: f.snapshot},
		Limits:      &dsecv1.Limits{Pids: f.pids},
		User:        f.user, Workdir: f.workdir, Hostname: f.hostname, NoNewPrivileges: f.noNewPrivs,
	}
	if !f.names() && s.Backend != dsecv1.Backend_BACKEND_FAKE {
		return nil, fmt.Errorf("name what the sandbox is made of: --base NAME, --image REF or --environment NAME (`dsec image ls` and `dsec env ls` show what there is)")
	}
	if f.image != "" && f.base != "" {
		return nil, fmt.Errorf("--image and --base both name the base: give one")
	}
	for _, size := range []struct {
		name, text string
		to         *int64
	}{{"memory", f.memory, &s.Limits.MemoryBytes}, {"disk", f.disk, &s.Limits.DiskBytes}, {"shm", f.shm, &s.Limits.ShmBytes},
		{"read-rate", f.readRate, &s.Limits.IoReadBps}, {"write-rate", f.writeRate, &s.Limits.IoWriteBps}} {
		if !cmd.Flags().Changed(size.name) {
			continue
		}
		n, err := parseSize(size.text)
		if err == nil && n <= 0 {
			err = fmt.Errorf("size %q: must be above 0", size.text)
		}
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", size.name, err)
		}
		*size.to = n
	}
	if cmd.Flags().Changed("cpus") {
		if !(f.cpus >= 0.001 && f.cpus <= maxCores) { // NaN fails too
			return nil, fmt.Errorf("--cpus %v: want a number of cores above 0, like 1.5", f.cpus)
		}
		s.Limits.CpuMillis = int64(math.Round(f.cpus * 1000))
	}
	if cmd.Flags().Changed("pids") && f.pids <= 0 {
		return nil, fmt.Errorf("--pids: must be above 0")
	}
	for _, d := range []struct {
		name, text string
		to         **float64
	}{{"ttl", f.ttl, &s.TtlSeconds}, {"idle", f.idle, &s.IdleTimeoutSeconds}, {"create-timeout", f.createTimeout, &s.CreateTimeoutSeconds}, {"paused", f.paused, &s.PausedSeconds}} {
		if !cmd.Flags().Changed(d.name) {
			continue
		}
		v, err := parseSeconds(d.text)
		if err == nil && v <= 0 {
			err = fmt.Errorf("duration %q: must be above 0", d.text)
		}
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", d.name, err)
		}
		*d.to = &v
	}
	switch f.onTimeout {
	case "", "stop": // a command without the flag has ""
	case "pause":
		s.OnTimeout = dsecv1.OnTimeout_ON_TIMEOUT_PAUSE
	default:
		return nil, fmt.Errorf("--on-timeout %q: want stop or pause", f.onTimeout)
	}
	s.ManualResume = f.manualResume
	if err := f.seed(s); err != nil {
		return nil, err
	}
	var err error
	if s.Env, err = parsePairs("--env", f.env, os.LookupEnv); err != nil {
		return nil, err
	}
	if s.Secrets, err = parsePairs("--secret", f.secrets, os.LookupEnv); err != nil {
		return nil, err
	}
	if s.Labels, err = parsePairs("--label", f.labels, nil); err != nil {
		return nil, err
	}
	s.NetworkRules, s.PrivateNetwork, s.NetworkName = rulesOf(f.allow), f.privateNetwork, f.networkName
	if s.NetworkLimits, err = f.netLimits.proto(cmd); err != nil {
		return nil, err
	}
	return s, nil
}

// maxSeed bounds what is read of a file for cloud-init; nodes take no more.
const maxSeed = 1 << 20

// seed reads the files for cloud-init.
func (f *specFlags) seed(s *dsecv1.SandboxSpec) error {
	c := &dsecv1.CloudInit{}
	any := false
	for _, part := range []struct {
		path string
		to   *[]byte
	}{{f.cloudInit, &c.UserData}, {f.cloudInitMeta, &c.MetaData}, {f.cloudInitNetwork, &c.NetworkConfig}} {
		if part.path == "" {
			continue
		}
		file, err := os.Open(part.path)
		if err != nil {
			return fmt.Errorf("--cloud-init: %w", err)
		}
		b, err := io.ReadAll(io.LimitReader(file, maxSeed+1))
		file.Close()
		if err != nil {
			return fmt.Errorf("--cloud-init: %w", err)
		}
		if len(b) > maxSeed {
			return fmt.Errorf("--cloud-init: %s has more than %d bytes", part.path, maxSeed)
		}
		*part.to, any = b, true
	}
	if any {
		s.CloudInit = c
	}
	return nil
}
