package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/build"
)

func newImageBuild() *cobra.Command {
	var name, file, memory, timeout string
	var args, allow []string
	var cpus float64
	var noCache bool
	cmd := &cobra.Command{
		Use:   "build [flags] CONTEXT",
		Short: "Make a base from a Dockerfile",
		Long: `Build carries out a Dockerfile of one stage: RUN in sandboxes of this service, which reach what --allow says and nothing else;
COPY from the directory CONTEXT. Steps that were done before are not done again. What cannot be built is refused with its
line and the reason before anything is done (docs/environments.md lists it).`,
		Example: `  dsec image build . --name app
  dsec image build . --name app -f docker/Dockerfile --build-arg VERSION=2 --allow pypi`,
		Args: exactArgs(1),
	}
	fl := cmd.Flags()
	fl.StringVar(&name, "name", "", "`NAME` of the base")
	fl.StringVarP(&file, "file", "f", "", "the Dockerfile (default: Dockerfile in CONTEXT)")
	fl.StringArrayVar(&args, "build-arg", nil, "value of an ARG: `NAME=VALUE`, or NAME to pass on this one's environment")
	fl.StringArrayVar(&allow, "allow", nil, "what RUN may reach: a `RULE` as for dsec run (without any: nothing)")
	fl.StringVarP(&memory, "memory", "m", "", "memory limit of RUN, like 2g")
	fl.Float64Var(&cpus, "cpus", 0, "CPU limit of RUN in cores")
	fl.StringVar(&timeout, "step-timeout", "1h", "how long one RUN may take")
	fl.BoolVar(&noCache, "no-cache", false, "do every step again")
	cmd.RunE = func(cmd *cobra.Command, argv []string) error {
		if name == "" {
			return &exitError{2, fmt.Errorf("--name is needed: what the base is called")}
		}
		o := build.Options{Name: name, NoCache: noCache, Network: rulesOf(allow), Limits: &dsecv1.Limits{CpuMillis: int64(cpus * 1000)}}
		var err error
		if o.Args, err = parsePairs("--build-arg", args, os.LookupEnv); err != nil {
			return &exitError{2, err}
		}
		if memory != "" {
			if o.Limits.MemoryBytes, err = parseSize(memory); err != nil || o.Limits.MemoryBytes <= 0 {
				return &exitError{2, fmt.Errorf("--memory %q: want a size like 2g", memory)}
			}
		}
		seconds, err := parseSeconds(timeout)
		if err != nil || seconds <= 0 {
			return &exitError{2, fmt.Errorf("--step-timeout %q: want a duration above 0, like 30m", timeout)}
		}
		o.StepTimeout = time.Duration(seconds * float64(time.Second))
		if o.Context, err = build.OpenContext(argv[0]); err != nil {
			return err
		}
		defer o.Context.Close()
		text, source, err := readDockerfile(o.Context, argv[0], file)
		if err != nil {
			return err
		}
		o.Source = source
		f, err := build.Parse(text)
		if err != nil {
			return err
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		o.Client = c
		w := cmd.ErrOrStderr()
		o.Step = func(n, of int, s build.Step, cached bool) {
			note := ""
			if cached {
				note = " (done before)"
			}
			fmt.Fprintf(w, "[%d/%d] line %d: %s%s\n", n, of, s.Line, printable(strings.Join(strings.Fields(s.Text), " ")), note)
		}
		o.Output = func(b []byte) error { _, err := w.Write(b); return err }
		made, err := build.Build(cmd.Context(), f, o)
		if err != nil {
			return interrupted(cmd.Context(), err, "no version was made; the steps that ended are kept, and the same command goes on from there")
		}
		return printImported(cmd, &dsecv1.ImportLayerResponse{Layer: made.Layer, Reused: made.Reused})
	}
	return cmd
}

// readDockerfile reads the one that is named, or the context's own.
func readDockerfile(c *build.Context, dir, file string) (text []byte, source string, err error) {
	if file == "" {
		text, err = c.ReadFile("Dockerfile")
		if errors.Is(err, fs.ErrNotExist) {
			return nil, "", fmt.Errorf("%s holds no Dockerfile; name another with -f FILE", dir)
		}
		file = filepath.Join(dir, "Dockerfile")
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, "", err
	}
	if abs, err := filepath.Abs(file); err == nil {
		file = abs
	}
	return text, file, nil
}
