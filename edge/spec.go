package edge

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/sandbox"
)

const (
	maxBatch    = 1000
	maxLabels   = 64
	maxLabel    = 256
	maxEnvTotal = 1 << 20 // the kernel's bound for one program, arguments included, is near 2 MiB
	maxLayers   = 64
	maxName     = 255
	maxPath     = 4095
)

// plan is a creation request that was found good.
type plan struct {
	public  *dsecv1.SandboxSpec // with defaults, without secrets
	secrets []string            // names
	// secretValues are never stored: a fork gets them while this process lives.
	secretValues map[string]string
	firstOrder   int64        // where commands count from; 0 = from 1
	snapshots    []string     // above the layers, bottom to top
	machine      sandbox.Spec // without id
	layers       []string
	backend      sandbox.Backend
	ttl          time.Duration
	idle         time.Duration
	timeout      time.Duration
	env          int64                // bytes
	network      *record.NetworkAsked // nil = none
	program      *network.Program
	hooks        []hook
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), sandbox.ErrInvalid)
}

// check turns a request into a plan. Errors: ErrInvalid, ErrUnsupported; they name the field and what is
// allowed, and never hold a value of env or secrets.
func (e *Edge) check(req *dsecv1.CreateResolvedRequest) (*plan, error) {
	public := &dsecv1.SandboxSpec{}
	if s := req.GetCreate().GetSpec(); s != nil {
		public = proto.Clone(s).(*dsecv1.SandboxSpec)
	}
	secrets := public.Secrets
	public.Secrets = nil
	seed := public.CloudInit
	public.CloudInit = nil
	p := &plan{public: public, secrets: slices.Sorted(maps.Keys(secrets)), secretValues: secrets}
	if public.Backend == dsecv1.Backend_BACKEND_UNSPECIFIED {
		public.Backend = backendProto(e.cfg.DefaultBackend)
	}
	name := backendNames[public.Backend]
	if p.backend = e.backends[name]; p.backend == nil {
		return nil, fmt.Errorf("backend %s: %w: this node offers %v", name, sandbox.ErrUnsupported, slices.Sorted(maps.Keys(e.backends)))
	}
	public.Limits = underLimits(public.Limits, req.DefaultLimits)
	limits, err := checkLimits(public.Limits, e.cfg.DefaultLimits, e.cfg.MaxLimits)
	if err != nil {
		return nil, err
	}
	public.Limits = limitsProto(limits)
	if err := e.checkTimes(p); err != nil {
		return nil, err
	}
	if err := checkLabels(public.Labels); err != nil {
		return nil, err
	}
	env, err := mergeEnv(req.ImageEnv, public.Env, secrets)
	if err != nil {
		return nil, err
	}
	for _, s := range env {
		p.env += int64(len(s)) + 9 // the terminator and the pointer
	}
	if p.hooks, err = hooksOf(req.Layers, p.env); err != nil {
		return nil, err
	}
	if public.User == "" {
		public.User = req.ImageUser
	}
	if public.Workdir == "" {
		public.Workdir = req.ImageWorkdir
	}
	if err := checkWords(public); err != nil {
		return nil, err
	}
	if len(req.Layers) > maxLayers {
		return nil, invalid("%d layers are more than %d", len(req.Layers), maxLayers)
	}
	p.machine = sandbox.Spec{
		Backend: name, Limits: limits, Hostname: public.Hostname, Env: env, User: public.User,
		Workdir: public.Workdir, NoNewPrivileges: public.NoNewPrivileges,
	}
	if p.machine.CloudInit, err = checkCloudInit(seed, p.backend); err != nil {
		return nil, err
	}
	if err := e.checkNetwork(p, req); err != nil {
		return nil, err
	}
	for _, l := range req.Layers {
		p.machine.Layers = append(p.machine.Layers, sandbox.LayerRef{Digest: l.Digest, Kind: l.Kind, Name: l.Name, Version: l.Version})
		p.layers = append(p.layers, l.Digest)
	}
	return p, nil
}

// begin puts a snapshot, with those below it, above the layers.
func (p *plan) begin(x *snapshot) {
	p.snapshots = x.chain()
	for _, id := range p.snapshots {
		p.machine.Snapshots = append(p.machine.Snapshots, sandbox.SnapshotID(id))
	}
	if p.firstOrder = x.rec.NextOrder; p.firstOrder > 0 {
		p.hooks = nil // what they began goes on
	}
}

func (e *Edge) checkTimes(p *plan) error {
	s := p.public
	p.ttl, p.timeout = e.cfg.DefaultTTL, e.cfg.CreateTimeout
	if s.TtlSeconds != nil {
		if err := checkTTL(*s.TtlSeconds, e.cfg.MaxTTL); err != nil {
			return err
		}
		p.ttl = seconds(*s.TtlSeconds)
	} else if p.ttl > 0 {
		s.TtlSeconds = proto.Float64(p.ttl.Seconds())
	}
	if s.IdleTimeoutSeconds != nil {
		if err := checkIdle(*s.IdleTimeoutSeconds, e.cfg.MaxTTL); err != nil {
			return err
		}
		p.idle = seconds(*s.IdleTimeoutSeconds)
	}
	if s.PausedSeconds == nil {
		s.PausedSeconds = proto.Float64(e.cfg.MaxTTL.Seconds())
	} else if n := *s.PausedSeconds; !(n > 0 && n <= e.cfg.MaxTTL.Seconds()) {
		return invalid("paused_seconds is %v: want more than 0, at most %.0f; leave it out for that", n, e.cfg.MaxTTL.Seconds())
	}
	if _, ok := dsecv1.OnTimeout_name[int32(s.OnTimeout)]; !ok {
		return invalid("on_timeout is %d: want stop or pause", s.OnTimeout)
	}
	if s.OnTimeout == dsecv1.OnTimeout_ON_TIMEOUT_PAUSE && !p.backend.Capabilities().Pause {
		return fmt.Errorf("on_timeout pause: a %s sandbox cannot be paused: %w", p.backend.Name(), sandbox.ErrUnsupported)
	}
	if s.CreateTimeoutSeconds != nil {
		if t := *s.CreateTimeoutSeconds; !(t > 0 && t <= 3600) {
			return invalid("create_timeout_seconds is %v: want more than 0, at most 3600, or nothing for the default of %v", t, e.cfg.CreateTimeout)
		}
		p.timeout = seconds(*s.CreateTimeoutSeconds)
	}
	return nil
}

func checkTTL(s float64, most time.Duration) error {
	if !(s > 0 && s <= most.Seconds()) { // NaN fails too
		return invalid("ttl_seconds is %v: want more than 0, at most %.0f; leave it out for the node's default", s, most.Seconds())
	}
	return nil
}

func checkIdle(s float64, most time.Duration) error {
	if !(s >= 0 && s <= most.Seconds()) {
		return invalid("idle_timeout_seconds is %v: want at most %.0f, or 0 for none", s, most.Seconds())
	}
	return nil
}

func checkLimits(l *dsecv1.Limits, d, most sandbox.Limits) (sandbox.Limits, error) {
	out := d
	for _, f := range []struct {
		name    string
		asked   int64
		to      *int64
		atMost  int64
		atLeast int64
	}{
		{"memory_bytes", l.GetMemoryBytes(), &out.MemoryBytes, most.MemoryBytes, 4 << 20},
		{"cpu_millis", l.GetCpuMillis(), &out.CPUMillis, most.CPUMillis, 10},
		{"pids", l.GetPids(), &out.Pids, most.Pids, 1},
		{"disk_bytes", l.GetDiskBytes(), &out.DiskBytes, most.DiskBytes, 1 << 20},
		{"io_read_bps", l.GetIoReadBps(), &out.IOReadBPS, most.IOReadBPS, 4 << 10},
		{"io_write_bps", l.GetIoWriteBps(), &out.IOWriteBPS, most.IOWriteBPS, 4 << 10},
	} {
		if f.asked == 0 {
			continue // the default
		}
		if f.asked < f.atLeast || f.asked > f.atMost {
			hint := ""
			if f.name == "cpu_millis" { // more than the node has is allowed: see maxCPUs
				hint = fmt.Sprintf("; it allows at most %g cores per sandbox", float64(f.atMost)/1000)
			}
			return out, invalid("limits.%s is %d: want %d to %d on this node, or 0 for the default of %d%s", f.name, f.asked, f.atLeast, f.atMost, *f.to, hint)
		}
		*f.to = f.asked
	}
	half := out.MemoryBytes / 2
	switch shm := l.GetShmBytes(); {
	case shm < 0 || shm > half:
		return out, invalid("limits.shm_bytes is %d: want at most half of memory_bytes, %d, or 0 for the default", shm, half)
	case shm > 0:
		out.ShmBytes = shm
	default:
		out.ShmBytes = min(out.ShmBytes, half)
	}
	return out, nil
}

// underLimits takes from a named environment what the request leaves open.
func underLimits(asked, named *dsecv1.Limits) *dsecv1.Limits {
	if named == nil {
		return asked
	}
	out := proto.Clone(named).(*dsecv1.Limits)
	proto.Merge(out, asked) // fields that are 0 are not merged
	return out
}

func limitsProto(l sandbox.Limits) *dsecv1.Limits {
	return &dsecv1.Limits{
		MemoryBytes: l.MemoryBytes, CpuMillis: l.CPUMillis, Pids: l.Pids, DiskBytes: l.DiskBytes, ShmBytes: l.ShmBytes,
		IoReadBps: l.IOReadBPS, IoWriteBps: l.IOWriteBPS,
	}
}

func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return invalid("%d labels are more than %d", len(labels), maxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k) > maxLabel || len(v) > maxLabel {
			return invalid("label %.64q: want a name of 1 to %d bytes and a value of at most %d", k, maxLabel, maxLabel)
		}
	}
	return nil
}

// checkWords checks the fields that go to dsec-init as they are.
func checkWords(s *dsecv1.SandboxSpec) error {
	if err := checkUserAndDir(s.User, s.Workdir); err != nil {
		return err
	}
	if s.Workdir != "" && !strings.HasPrefix(s.Workdir, "/") {
		return invalid("workdir %.64q: want an absolute path", s.Workdir)
	}
	if len(s.Hostname) > 63 {
		return invalid("hostname of %d bytes: want at most 63", len(s.Hostname))
	}
	for i, c := range s.Hostname {
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '-' && c != '.') {
			return invalid("hostname %q: want letters, digits, '-' and '.', beginning with a letter or digit", s.Hostname)
		}
	}
	return nil
}

func checkUserAndDir(user, dir string) error {
	if len(user) > maxName || strings.ContainsAny(user, "\x00\n/") {
		return invalid("user %.64q: want a name or id of at most %d bytes, \"name:group\" or \"uid:gid\"", user, maxName)
	}
	if len(dir) > maxPath || strings.Contains(dir, "\x00") {
		return invalid("directory %.64q: want at most %d bytes without NUL", dir, maxPath)
	}
	return nil
}

// mergeEnv joins the image's environment, the sandbox's and the secrets; later ones win. Error: ErrInvalid,
// without any value.
func mergeEnv(image []string, maps ...map[string]string) ([]string, error) {
	var out []string
	index := map[string]int{}
	total := 0
	put := func(name, value string) {
		if i, ok := index[name]; ok {
			total -= len(out[i])
			out[i] = name + "=" + value
			total += len(out[i])
			return
		}
		index[name] = len(out)
		out = append(out, name+"="+value)
		total += len(out[len(out)-1])
	}
	for _, kv := range image {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			put(name, value)
		}
	}
	for _, m := range maps {
		for _, name := range sortedKeys(m) {
			if name == "" || len(name) > maxName || strings.ContainsAny(name, "=\x00") || !utf8.ValidString(name) {
				return nil, invalid("environment variable %.64q: want a name of 1 to %d bytes without '='", name, maxName)
			}
			if strings.Contains(m[name], "\x00") {
				return nil, invalid("environment variable %s: its value holds a NUL byte", name)
			}
			if len(name)+1+len(m[name]) >= maxArg {
				return nil, invalid("environment variable %s: %d bytes are more than the kernel takes (%d)", name, len(m[name]), maxArg-1)
			}
			put(name, m[name])
		}
	}
	if total > maxEnvTotal {
		return nil, invalid("environment variables of %d bytes in all: want at most %d", total, maxEnvTotal)
	}
	return out, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
