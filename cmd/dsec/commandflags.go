package main

import (
	"errors"
	"fmt"
	"os"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
)

// commandFlags are the flags of run and exec that say how the command runs.
type commandFlags struct {
	interactive, tty bool
	script, timeout  string
	tag, session     string
}

func (f *commandFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.SetInterspersed(false) // what follows the first argument is the command's
	fl.BoolVarP(&f.interactive, "interactive", "i", false, "pass stdin on")
	fl.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	fl.StringVarP(&f.script, "command", "c", "", "run a `SCRIPT` by the sandbox's own shell instead of a program")
	fl.StringVar(&f.timeout, "timeout", "", "end the command's whole tree after this long, like 90s")
	fl.StringVar(&f.tag, "tag", "", "shown in listings")
}

// withoutDashes drops a leading "--": flags end at the first argument, so that it is left in place.
func withoutDashes(argv []string) []string {
	if len(argv) > 0 && argv[0] == "--" {
		return argv[1:]
	}
	return argv
}

var errNoCommand = errors.New("no command: append one (`-- make test`) or give -c 'SCRIPT'")

// spec makes the command from flags and arguments. fallback is what to run when nothing was named; empty = that
// is an error.
func (f *commandFlags) spec(argv []string, fallback string) (*dsecv1.CommandSpec, error) {
	s := &dsecv1.CommandSpec{Argv: argv, Shell: f.script, Tag: f.tag, SessionId: f.session}
	switch {
	case len(argv) > 0 && f.script != "":
		return nil, fmt.Errorf("give either a program or -c SCRIPT")
	case len(argv) == 0 && f.script == "":
		if s.Shell = fallback; fallback == "" {
			return nil, errNoCommand
		}
	}
	if f.timeout != "" {
		v, err := parseSeconds(f.timeout)
		if err == nil && v <= 0 {
			err = fmt.Errorf("duration %q: must be above 0", f.timeout)
		}
		if err != nil {
			return nil, fmt.Errorf("--timeout: %w", err)
		}
		s.TimeoutSeconds = &v
	}
	return s, nil
}

// overrides are the flags of exec and shell that differ from the sandbox's defaults.
type overrides struct {
	env, secrets  []string
	user, workdir string
}

func (o *overrides) register(cmd *cobra.Command) {
	o.registerPlain(cmd)
	cmd.Flags().StringArrayVar(&o.secrets, "secret", nil, "like --env, but never shown or recorded: `NAME` (from this environment) or NAME=VALUE")
}

// registerPlain leaves out secrets.
func (o *overrides) registerPlain(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringArrayVarP(&o.env, "env", "e", nil, "environment variable `NAME=VALUE`, or NAME to pass on this one's")
	fl.StringVarP(&o.user, "user", "u", "", "user: name or id, USER:GROUP (default: the sandbox's)")
	fl.StringVarP(&o.workdir, "workdir", "w", "", "working directory (default: the sandbox's)")
}

func (o *overrides) apply(s *dsecv1.CommandSpec) (err error) {
	s.User, s.Cwd = o.user, o.workdir
	if s.Env, err = parsePairs("--env", o.env, os.LookupEnv); err != nil {
		return err
	}
	s.Secrets, err = parsePairs("--secret", o.secrets, os.LookupEnv)
	return err
}
