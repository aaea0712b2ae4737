package e2b

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
)

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
