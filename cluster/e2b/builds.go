package e2b

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/build"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/layer"
)

// Bounds of builds.
const (
	maxBuilds     = 200    // remembered; those that ended first go first
	maxRunning    = 8      // at once
	maxBuildLogs  = 10_000 // lines of one
	maxLogPage    = 100
	maxLogLine    = 4096
	buildLife     = 2 * time.Hour
	readyPatience = 55 // seconds that a template's start command has to be ready
)

// builds are those of this process; they end with it, and their clients then hear that there is no such build.
type builds struct {
	mu   sync.Mutex
	byID map[string]*templateBuild
}

// templateBuild is one build of a template.
type templateBuild struct {
	id, name  string
	tags      []string
	cpus      int64
	memory    int64 // MiB
	announced time.Time

	mu     sync.Mutex
	status string // waiting, building, ready, error
	lines  []buildLog
	reason *buildReason
}

type buildLog struct {
	Timestamp string `json:"timestamp"`
	Message   string `json:"message"`
	Level     string `json:"level"`
	Step      string `json:"step,omitempty"`
}

type buildReason struct {
	Message string `json:"message"`
	Step    string `json:"step,omitempty"`
}

// newTemplate announces a build.
func (d *Door) newTemplate(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Name, Alias string
		Tags        []string
		CPUCount    int64
		MemoryMB    int64
	}
	if err := readJSON(r, &in); err != nil {
		return err
	}
	if in.Name == "" {
		in.Name = in.Alias
	}
	name, tag, tagged := strings.Cut(in.Name, ":")
	if tagged {
		in.Tags = append(in.Tags, tag)
	}
	if len(in.Tags) == 0 {
		in.Tags = []string{defaultTag}
	}
	if err := checkTags(name, in.Tags); err != nil {
		return err
	}
	if in.CPUCount < 0 || in.MemoryMB < 0 || in.CPUCount > 1024 || in.MemoryMB > 1<<24 {
		return refused(http.StatusBadRequest, "cpuCount is %d and memoryMB %d: want none below 0", in.CPUCount, in.MemoryMB)
	}
	b := &templateBuild{id: newUUID(), name: name, tags: in.Tags, cpus: in.CPUCount, memory: in.MemoryMB, announced: time.Now(), status: "waiting"}
	if err := d.builds.add(b); err != nil {
		return err
	}
	writeJSON(w, http.StatusAccepted, map[string]any{
		"templateID": name, "buildID": b.id, "public": true, "names": []string{name}, "aliases": []string{name}, "tags": in.Tags,
	})
	return nil
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return uuid(b)
}

func uuid(b [16]byte) string {
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func (bs *builds) add(b *templateBuild) error {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if bs.byID == nil {
		bs.byID = map[string]*templateBuild{}
	}
	for len(bs.byID) >= maxBuilds {
		var oldest *templateBuild
		for _, x := range bs.byID {
			if s := x.state(); s != "building" && (oldest == nil || x.announced.Before(oldest.announced)) {
				oldest = x
			}
		}
		if oldest == nil {
			return refused(http.StatusTooManyRequests, "%d templates are being built", len(bs.byID))
		}
		delete(bs.byID, oldest.id)
	}
	bs.byID[b.id] = b
	return nil
}

func (bs *builds) find(r *http.Request) (*templateBuild, error) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b := bs.byID[r.PathValue("build")]
	if b == nil || b.name != r.PathValue("id") {
		return nil, refused(http.StatusNotFound, "template %.100q has no build %.40q, or the service was restarted since", r.PathValue("id"), r.PathValue("build"))
	}
	return b, nil
}

// begin takes a build's turn. Errors: 409, 429.
func (bs *builds) begin(b *templateBuild) error {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	running := 0
	for _, x := range bs.byID {
		if x.state() == "building" {
			if running++; x.name == b.name {
				return refused(http.StatusConflict, "template %s is being built already", b.name)
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.status != "waiting":
		return refused(http.StatusConflict, "build %s was started already", b.id)
	case running >= maxRunning:
		return refused(http.StatusTooManyRequests, "%d templates are being built: try again later", running)
	}
	b.status = "building"
	return nil
}

func (b *templateBuild) state() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

// log adds lines; what is beyond the bound is left out, and the last line says so.
func (b *templateBuild) log(step int, level, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(text) {
		line = strings.ToValidUTF8(strings.TrimRight(line, "\r\n"), "\uFFFD")
		if len(b.lines) >= maxBuildLogs {
			return
		}
		if len(b.lines) == maxBuildLogs-1 {
			line = "the rest of the log was not kept"
		}
		l := buildLog{Timestamp: time.Now().UTC().Format(time.RFC3339Nano), Message: line[:min(len(line), maxLogLine)], Level: level}
		if step > 0 {
			l.Step = strconv.Itoa(step)
		}
		b.lines = append(b.lines, l)
	}
}

func (b *templateBuild) end(step int, err error) {
	if err != nil {
		b.log(step, "error", message(err))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status = "ready"
	if err != nil {
		b.status, b.reason = "error", &buildReason{Message: message(err)}
		if step > 0 {
			b.reason.Step = strconv.Itoa(step)
		}
	}
}

// buildStatus tells how far a build is, with its log from an offset on.
func (d *Door) buildStatus(w http.ResponseWriter, r *http.Request) error {
	b, err := d.builds.find(r)
	if err != nil {
		return err
	}
	from := 0
	if s := r.URL.Query().Get("logsOffset"); s != "" {
		if from, err = strconv.Atoi(s); err != nil || from < 0 {
			return refused(http.StatusBadRequest, "logsOffset %.40q: want a number from 0", s)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	page := b.lines[min(from, len(b.lines)):min(from+maxLogPage, len(b.lines))]
	logs := make([]string, len(page))
	for k, l := range page {
		logs[k] = l.Message
	}
	out := map[string]any{"templateID": b.name, "buildID": b.id, "status": b.status, "logs": logs, "logEntries": append([]buildLog{}, page...)}
	if b.reason != nil {
		out["reason"] = b.reason
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// startBuild starts a build, which goes on when the client has gone.
func (d *Door) startBuild(w http.ResponseWriter, r *http.Request) error {
	b, err := d.builds.find(r)
	if err != nil {
		return err
	}
	var in buildStart
	if err := readJSON(r, &in); err != nil {
		return err
	}
	switch {
	case len(in.FromImageRegistry) > 0 && string(in.FromImageRegistry) != "null":
		return unsupported("fromImageRegistry: import the image with `dsec image import`, and name it here")
	case (in.FromImage == "") == (in.FromTemplate == ""):
		return refused(http.StatusBadRequest, "want one of fromImage and fromTemplate")
	}
	env := &templateEnv{NamedEnvironment: &dsecv1.NamedEnvironment{Name: b.name, Limits: &dsecv1.Limits{CpuMillis: b.cpus * 1000, MemoryBytes: b.memory << 20}}}
	if in.FromTemplate != "" {
		if err := d.fromTemplate(r.Context(), in.FromTemplate, env); err != nil {
			return err
		}
	}
	text, steps, err := in.dockerfile(env.User, env.Workdir)
	if err != nil {
		return err
	}
	f, err := build.Parse([]byte(text))
	if err != nil {
		return refused(http.StatusBadRequest, "the template's steps: %v", err)
	}
	if err := d.builds.begin(b); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), buildLife)
	go func() {
		defer cancel()
		at, err := d.build(ctx, b, &in, env, f, steps)
		d.uploads.drop(func(u *upload) bool { return u.template == b.name })
		b.end(at, err)
	}()
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// build makes the template; step is where it failed, 0 = at none.
func (d *Door) build(ctx context.Context, b *templateBuild, in *buildStart, env *templateEnv, f *build.File, steps []int) (step int, err error) {
	if err := os.MkdirAll(d.o.Scratch, 0o700); err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp(d.o.Scratch, "context-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	for n, s := range in.Steps {
		if s.Type == "COPY" {
			if err := d.uploads.unpack(ctx, b.name, s.FilesHash, dir); err != nil {
				return n + 1, err
			}
		}
	}
	c, err := client.New(client.Options{Config: client.Config{URL: apiURL}, Transport: d.o.API})
	if err != nil {
		return 0, err
	}
	files, err := build.OpenContext(dir)
	if err != nil {
		return 0, err
	}
	defer files.Close()
	o := build.Options{Client: c, Name: b.name, Context: files, Source: "E2B template", NoCache: in.force(), Network: openNetwork()}
	if o.From = env.from; o.From == nil {
		if o.From, err = image(ctx, c, in.FromImage); err != nil {
			return 0, err
		}
	}
	current := 0
	o.Step = func(n, _ int, s build.Step, cached bool) {
		// Lines of the text are in order, and so are its steps: FROM is the first line.
		current = steps[n]
		if current > 0 {
			what := strings.Join(strings.Fields(in.Steps[current-1].Type+" "+strings.Join(in.Steps[current-1].Args, " ")), " ")
			if cached {
				what = "CACHED " + what
			}
			b.log(current, "info", what)
		}
	}
	o.Output = func(out []byte) error { b.log(current, "info", string(out)); return nil }
	made, err := build.Build(ctx, f, o)
	if connect.CodeOf(err) == connect.CodeUnimplemented && o.Network != nil {
		b.log(0, "warn", "this node has no network for sandboxes: steps run without")
		o.Network = nil
		made, err = build.Build(ctx, f, o)
	}
	if err != nil {
		return current, err
	}
	return len(in.Steps), d.publish(ctx, c, b, in, made.Layer, env)
}

// templateEnv is what a template becomes.
type templateEnv struct {
	*dsecv1.NamedEnvironment
	from  *dsecv1.Environment // nil = an image
	hooks []*dsecv1.OnStart   // of the template that it is made from: a build keeps a toolkit's files alone
}

// uploadHook makes a toolkit that has something run at the start. It holds what it runs, so that its content tells it from others.
func uploadHook(ctx context.Context, c *client.Client, name string, h *dsecv1.OnStart) (*dsecv1.Layer, error) {
	text := []byte(strings.Join(h.GetArgv(), "\n") + "\n")
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&tar.Header{Name: "usr/share/template/" + path.Base(name), Mode: 0o644, Size: int64(len(text))})
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, err
	}
	resp, err := c.UploadLayer(ctx, client.Upload{Kind: "toolkit", Name: name, Source: "E2B template", OnStart: h}, &archive, nil)
	return resp.GetLayer(), err
}

func (in *buildStart) force() bool {
	force := in.Force
	for _, s := range in.Steps {
		force = force || s.Force
	}
	return force
}

func openNetwork() []*dsecv1.NetworkRule { return []*dsecv1.NetworkRule{{Target: "open", Allow: true}} }

// fromTemplate begins with a template, its user, directory and variables.
func (d *Door) fromTemplate(ctx context.Context, name string, env *templateEnv) error {
	env.from = &dsecv1.Environment{Name: name}
	found, err := d.environments.InspectEnvironment(ctx, &dsecv1.InspectEnvironmentRequest{Environment: env.from, Paths: -1})
	if unknownTemplate(err) {
		env.from = &dsecv1.Environment{Image: name}
		found, err = d.environments.InspectEnvironment(ctx, &dsecv1.InspectEnvironmentRequest{Environment: env.from, Paths: -1})
	}
	if err != nil {
		if unknownTemplate(err) {
			return refused(http.StatusNotFound, "template %.100q was not found: %s", name, message(err))
		}
		return err
	}
	e := found.GetEnvironment()
	env.User, env.Workdir, env.Env = cmp.Or(e.GetUser(), found.GetConfig().GetUser()), cmp.Or(e.GetWorkdir(), found.GetConfig().GetWorkdir()), e.GetEnv()
	for _, l := range found.GetLayers() {
		if h := l.GetLayer().GetOnStart(); h != nil {
			env.hooks = append(env.hooks, h)
		}
	}
	return nil
}

// image finds an image, of the catalogue or of Docker Hub.
func image(ctx context.Context, c *client.Client, name string) (*dsecv1.Environment, error) {
	there := &dsecv1.Environment{Image: name}
	_, err := c.Environments.InspectEnvironment(ctx, &dsecv1.InspectEnvironmentRequest{Environment: there, Paths: -1})
	if err == nil || connect.CodeOf(err) != connect.CodeNotFound {
		return there, err
	}
	source := dockerReference(name)
	s, err := c.Layers.ImportLayer(ctx, &dsecv1.ImportLayerRequest{Kind: dsecv1.LayerKind_LAYER_KIND_BASE, Source: "docker://" + source, Name: name})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for s.Receive() { // to its end
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("image %.200s is not in the catalogue (dsec image import), and could not be fetched from %s: %w", name, source, err)
	}
	return there, nil
}

// dockerReference completes a reference as Docker does.
func dockerReference(image string) string {
	host, rest, slash := strings.Cut(image, "/")
	switch {
	case !slash:
		return "docker.io/library/" + image
	case !strings.ContainsAny(host, ".:") && host != "localhost":
		return "docker.io/" + host + "/" + rest
	}
	return image
}

// publish gives the template its name and tags.
func (d *Door) publish(ctx context.Context, c *client.Client, b *templateBuild, in *buildStart, made *dsecv1.Layer, env *templateEnv) error {
	env.Stack = &dsecv1.Environment{Base: made.GetName() + "@" + made.GetVersion()}
	env.User, env.Workdir = made.GetConfig().GetUser(), made.GetConfig().GetWorkdir()
	hooks := env.hooks
	if in.StartCmd != "" || in.ReadyCmd != "" {
		hooks = append(hooks, &dsecv1.OnStart{Argv: startArgv(in), User: env.User})
	}
	for n, h := range hooks {
		start, err := uploadHook(ctx, c, fmt.Sprintf("%s/start-%d", b.name, n), h)
		if err != nil {
			return fmt.Errorf("what is run at the start: %w", err)
		}
		env.Stack.Toolkits = append(env.Stack.Toolkits, start.GetName()+"@"+start.GetVersion())
	}
	for _, name := range append([]string{b.name}, tagged(b.name, b.tags)...) {
		env.Name = name
		if _, err := c.Environments.CreateEnvironment(ctx, &dsecv1.CreateEnvironmentRequest{Environment: env.NamedEnvironment, Replace: true}); err != nil {
			return fmt.Errorf("name the template %s: %w", name, err)
		}
	}
	return nil
}

// startArgv starts a template's program in each new sandbox, and waits until it is ready: there is no memory of it in the
// template that could be woken.
func startArgv(in *buildStart) []string {
	script := `if [ -n "$1" ]; then setsid bash -l -c "$1" </dev/null >/tmp/.start.log 2>&1 & fi
[ -n "$2" ] || exit 0
end=$((SECONDS+` + strconv.Itoa(readyPatience) + `))
until bash -l -c "$2" >/dev/null 2>&1; do
	[ $SECONDS -lt $end ] || { echo "the ready command did not succeed in time"; tail -c 2000 /tmp/.start.log; exit 1; }
	sleep 0.05
done`
	return []string{"/bin/bash", "-c", script, "start", in.StartCmd, in.ReadyCmd}
}

// checkTags refuses what cannot be a name with tags.
func checkTags(name string, tags []string) error {
	for _, full := range append([]string{name}, tagged(name, tags)...) {
		if err := layer.CheckName(full); err != nil {
			return refused(http.StatusBadRequest, "%v", err)
		}
	}
	for _, t := range tags {
		if strings.ContainsAny(t, ":/") {
			return refused(http.StatusBadRequest, "tag %.100q has a colon or slash", t)
		}
	}
	return nil
}

func tagged(name string, tags []string) []string {
	out := make([]string, len(tags))
	for k, t := range tags {
		out[k] = name + ":" + t
	}
	return out
}

// templateFiles says whether files of a template are there, and where to put them.
func (d *Door) templateFiles(w http.ResponseWriter, r *http.Request) error {
	hash := r.PathValue("hash")
	if !isHash(hash) {
		return refused(http.StatusBadRequest, "%.80q is no SHA-256", hash)
	}
	token, present, err := d.uploads.announce(r.PathValue("id"), hash)
	if err != nil {
		return err
	}
	out := map[string]any{"present": present}
	if !present {
		scheme := "http"
		if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
			scheme = "https"
		}
		out["url"] = scheme + "://" + r.Host + uploadPath + token
	}
	writeJSON(w, http.StatusCreated, out)
	return nil
}
