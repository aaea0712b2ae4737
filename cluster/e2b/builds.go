package e2b

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/build"
	"github.com/opendsec/dsec/client"
)

// Bounds of builds.
const (
	maxBuilds     = 200    // remembered; those that ended first go first
	maxRunning    = 8      // at once
	maxBuildLogs  = 10_000 // lines of one
	maxBuildBytes = 4 << 20
	maxLogPage    = 100
	maxLogLine    = 4096
	buildLife     = 2 * time.Hour
	readyPatience = 55 // seconds that a template's start command has to be ready
)

// builds are those of this service, in files too. One that is under way ends with the process.
type builds struct {
	dir string
	log *slog.Logger

	mu   sync.Mutex
	byID map[string]*templateBuild
}

// templateBuild is one build of a template.
type templateBuild struct {
	of *builds

	id, name  string
	tags      []string
	cpus      int64
	memory    int64 // MiB
	announced time.Time

	mu     sync.Mutex
	status string     // waiting, building, ready, error
	lines  []buildLog // while it is under way, or where the file could not be kept
	bytes  int        // of lines
	file   *os.File   // the log, while it is written
	lost   bool       // the file is not whole
	reason *buildReason
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
	b := &templateBuild{of: &d.builds, id: newUUID(), name: name, tags: in.Tags, cpus: in.CPUCount, memory: in.MemoryMB, announced: time.Now(), status: "waiting"}
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
		bs.removeFiles(oldest.id)
	}
	bs.byID[b.id] = b
	bs.save(b)
	return nil
}

func (bs *builds) find(r *http.Request) (*templateBuild, error) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b := bs.byID[r.PathValue("build")]
	if b == nil || b.name != r.PathValue("id") {
		return nil, refused(http.StatusNotFound, "template %.100q has no build %.40q: the last %d are known, on the server that they were made on", r.PathValue("id"), r.PathValue("build"), maxBuilds)
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
	bs.save(b)
	return nil
}

func (b *templateBuild) state() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
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
	if _, err := build.Parse([]byte(text)); err != nil {
		return refused(http.StatusBadRequest, "the template's steps: %v", err)
	}
	if err := d.builds.begin(b); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), buildLife)
	go func() {
		defer cancel()
		at, err := d.build(ctx, b, &in, env, text, steps)
		d.uploads.drop(func(u *upload) bool { return u.template == b.name })
		b.end(at, err)
	}()
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// build makes the template; step is where it failed, 0 = at none.
func (d *Door) build(ctx context.Context, b *templateBuild, in *buildStart, env *templateEnv, text string, steps []int) (step int, err error) {
	if err := os.MkdirAll(d.contexts(), 0o700); err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp(d.contexts(), "")
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
	o := build.Options{Client: c, Name: b.name, Context: files, Source: "E2B template", NoCache: in.force(), Network: openNetwork(), Labels: map[string]string{labelBuild: b.id}}
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
	f, err := build.Parse([]byte(text))
	if err != nil {
		return 0, err
	}
	made, err := build.Build(ctx, f, o)
	if connect.CodeOf(err) == connect.CodeUnimplemented && o.Network != nil {
		b.log(0, "warn", "this node has no network for sandboxes: steps run without")
		o.Network = nil
		if f, err = build.Parse([]byte(text)); err != nil { // anew: a build expands variables where they stand
			return 0, err
		}
		made, err = build.Build(ctx, f, o)
	}
	if err != nil {
		return current, err
	}
	return len(in.Steps), d.publish(ctx, c, b, in, made.Layer, env)
}

func (in *buildStart) force() bool {
	force := in.Force
	for _, s := range in.Steps {
		force = force || s.Force
	}
	return force
}

func openNetwork() []*dsecv1.NetworkRule { return []*dsecv1.NetworkRule{{Target: "open", Allow: true}} }

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
