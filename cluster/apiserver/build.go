package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/build"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/linger"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// Bounds of builds that are carried out here.
const (
	maxBuilds    = 8
	buildTimeout = 6 * time.Hour
	contextStall = 2 * time.Minute // how long the sending of a context may stand still
	maxBuildText = 4096            // of a step or a source in an answer, bytes
)

// buildImage answers PUT /v1/builds: the body is the archive of a context, the answer JSON lines of BuildImageResponse, the
// last with the layer or an error. The build ends when its client leaves.
func (s *Server) buildImage(w http.ResponseWriter, r *http.Request) {
	linger.Begin(w)
	defer linger.End(w, r.Body) // nothing, unless the context was refused
	o, file, err := readBuild(r.URL.Query())
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	if s.builds.Add(1) > maxBuilds {
		s.builds.Add(-1)
		s.writeError(w, r, fmt.Errorf("build: %w: %d builds are under way; try again when one has ended", sandbox.ErrExhausted, maxBuilds))
		return
	}
	defer s.builds.Add(-1)
	ctx, cancel := context.WithTimeoutCause(r.Context(), buildTimeout, fmt.Errorf("build: %w: it took more than %v", sandbox.ErrDeadline, buildTimeout))
	defer cancel()
	lines := &buildLines{w: w, rc: http.NewResponseController(w)}
	f, err := s.takeContext(ctx, w, r, &o, file)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	defer os.RemoveAll(filepath.Dir(f.dir))
	defer o.Context.Close()
	o.Step = func(n, of int, step build.Step, cached bool) {
		text := strings.ToValidUTF8(step.Text, "\uFFFD")
		_ = lines.send(&dsecv1.BuildImageResponse{Step: &dsecv1.BuildStep{Number: int32(n), Count: int32(of), Line: int32(step.Line), Text: text[:min(len(text), maxBuildText)], Cached: cached}})
	}
	o.Output = func(b []byte) error { return lines.send(&dsecv1.BuildImageResponse{Output: b}) }
	made, err := build.Build(ctx, f.parsed, o)
	if err != nil {
		ce := connectError(err)
		_ = lines.send(&dsecv1.BuildImageResponse{Error: &dsecv1.ImportError{Code: ce.Code().String(), Message: ce.Message()}})
		return
	}
	_ = lines.send(&dsecv1.BuildImageResponse{Layer: made.Layer, Reused: made.Reused, CachedSteps: int32(made.Cached)})
}

// buildLines is the answer; it begins with what is sent first.
type buildLines struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	begun bool
}

func (l *buildLines) send(m *dsecv1.BuildImageResponse) error {
	line, err := protojson.Marshal(m)
	if err != nil {
		return err
	}
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", "application/x-ndjson")
	}
	if _, err := l.w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("%w: the client is gone: %w", context.Canceled, err)
	}
	return l.rc.Flush()
}

// builtFile is a Dockerfile and where its context lies.
type builtFile struct {
	dir    string
	parsed *build.File
}

// takeContext unpacks the context and reads its Dockerfile. The directory above its own is the caller's to remove.
func (s *Server) takeContext(ctx context.Context, w http.ResponseWriter, r *http.Request, o *build.Options, file string) (f *builtFile, err error) {
	scratch := s.o.Scratch
	if scratch == "" {
		scratch = os.TempDir()
	}
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(scratch, "build-")
	if err != nil {
		return nil, err
	}
	f = &builtFile{dir: filepath.Join(tmp, "context")}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
			if o.Context != nil {
				o.Context.Close()
			}
		}
	}()
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		return nil, err
	}
	body := &contextBody{r: r.Body, rc: http.NewResponseController(w)}
	if err := build.UnpackContext(ctx, body, f.dir); err != nil {
		return nil, err
	}
	if err := body.end(); err != nil {
		return nil, err
	}
	if o.Context, err = build.OpenContext(f.dir); err != nil {
		return nil, err
	}
	text, err := o.Context.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("build: %w: the context holds no %.200s", sandbox.ErrInvalid, file)
	}
	if err != nil {
		return nil, fmt.Errorf("build: %w: %w", sandbox.ErrInvalid, err)
	}
	if f.parsed, err = build.Parse(text); err != nil {
		return nil, err
	}
	o.Client, err = client.New(client.Options{Config: client.Config{URL: "http://api.internal"}, Transport: s.Inside()})
	return f, err
}

// readBuild reads the URL.
func readBuild(q url.Values) (o build.Options, file string, err error) {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("build: %w: %s", sandbox.ErrInvalid, fmt.Sprintf(format, args...))
	}
	o = build.Options{Name: q.Get("name"), Source: q.Get("source"), NoCache: q.Get("no_cache") == "true", Args: map[string]string{}, Limits: &dsecv1.Limits{}}
	if err := layer.CheckName(o.Name); err != nil {
		return o, "", err
	}
	if len(o.Source) > maxBuildText {
		return o, "", invalid("a source of %d bytes", len(o.Source))
	}
	if file = q.Get("dockerfile"); file == "" {
		file = "Dockerfile"
	}
	for _, a := range q["build_arg"] {
		k, v, ok := strings.Cut(a, "=")
		if !ok || k == "" {
			return o, "", invalid("build_arg %.100q: want NAME=VALUE", a)
		}
		o.Args[k] = v
	}
	for _, t := range q["allow"] {
		target, deny := strings.CutPrefix(t, "!")
		o.Network = append(o.Network, &dsecv1.NetworkRule{Target: target, Allow: !deny})
	}
	for name, to := range map[string]*int64{"memory_bytes": &o.Limits.MemoryBytes, "cpu_millis": &o.Limits.CpuMillis} {
		if t := q.Get(name); t != "" {
			if *to, err = strconv.ParseInt(t, 10, 64); err != nil || *to < 0 {
				return o, "", invalid("%s %.40q: want a number from 0", name, t)
			}
		}
	}
	if t := q.Get("step_timeout"); t != "" {
		v, err := strconv.ParseFloat(t, 64)
		if err != nil || !(v > 0 && v <= buildTimeout.Seconds()) {
			return o, "", invalid("step_timeout %.40q: want seconds above 0, at most %.0f", t, buildTimeout.Seconds())
		}
		o.StepTimeout = time.Duration(math.Ceil(v * float64(time.Second)))
	}
	return o, file, nil
}

// maxTail bounds what may follow an archive's end, bytes: padding.
const maxTail = 1 << 20

// end reads what is left. Only then does the server watch the connection, and end the build when its client leaves.
func (b *contextBody) end() error {
	n, err := io.Copy(io.Discard, io.LimitReader(b, maxTail))
	if err == nil && n == maxTail {
		err = fmt.Errorf("%w: %d bytes and more follow the archive's end", sandbox.ErrInvalid, n)
	}
	if err != nil {
		return fmt.Errorf("build context: %w", err)
	}
	return nil
}

// contextBody is a request's body whose reader cannot wait for ever.
type contextBody struct {
	r     io.Reader
	rc    *http.ResponseController
	total int64
}

func (b *contextBody) Read(p []byte) (int, error) {
	_ = b.rc.SetReadDeadline(time.Now().Add(contextStall)) // a request without a connection has its context's
	n, err := b.r.Read(p)
	b.total += int64(n)
	if err == nil || err == io.EOF {
		if err == io.EOF {
			_ = b.rc.SetReadDeadline(time.Time{})
		}
		return n, err
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, fmt.Errorf("%w: nothing came for %v", sandbox.ErrDeadline, contextStall)
	}
	return n, fmt.Errorf("%w: cut off after %d bytes: %w", sandbox.ErrUnavailable, b.total, err)
}
