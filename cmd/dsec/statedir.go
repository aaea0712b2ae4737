package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/cluster/supervisor"
	"github.com/spf13/cobra"
)

// stateDir is the one directory of a node:
//
//	client.json          URL and key (0600)
//	lock                 held by `dsec up`, with its pid
//	run/up.json          what runs (upState); run/up.sock says it, too
//	run/ROLE.lock        held by each role, with its pid
//	run/*.sock           sockets of the roles
//	log/ROLE.log, log/up.log
//	engine/ layers/ edge/    each role's own
type stateDir string

func stateFlag(cmd *cobra.Command, d *string) {
	def := client.DefaultStateDir
	if v := os.Getenv("DSEC_STATE"); v != "" {
		def = v
	}
	cmd.Flags().StringVar(d, "state", def, "state `directory` of the node (DSEC_STATE)")
}

func (d stateDir) path(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

func (d stateDir) socket(role string) string { return d.path("run", role+".sock") }

// endpoint of a role's socket for clients.
func (d stateDir) endpoint(role string) string { return "unix://" + d.socket(role) }

// maxSocketPath bounds the path of a Unix socket, bytes.
const maxSocketPath = 107

// openStateDir makes the directories, readable by nobody else, and makes the path absolute.
func openStateDir(dir string) (stateDir, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	d := stateDir(abs)
	if longest := d.path("run", "engine.sock-peer"); len(longest) > maxSocketPath {
		return "", fmt.Errorf("state directory %s: its path is too long for the sockets below it: use one of at most %d bytes",
			abs, maxSocketPath-(len(longest)-len(abs)))
	}
	for _, p := range []string{abs, d.path("run"), d.path("log")} {
		if err := os.MkdirAll(p, 0o700); err != nil {
			return "", fmt.Errorf("make state directory: %w", err)
		}
	}
	return d, os.Chmod(d.path("run"), 0o700)
}

// lockFile takes an exclusive lock on a file and writes this process's pid into it. The lock ends with the
// process, whatever ends it; a file that was left behind means nothing. Error: *heldError.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		return nil, &heldError{path: path, pid: readPID(f)}
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write lock: %w", err)
	}
	return f, nil
}

func readPID(f *os.File) int {
	b := make([]byte, 16)
	n, _ := f.ReadAt(b, 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return pid
}

// heldError says who holds a lock; pid 0 = it has not written its pid yet.
type heldError struct {
	path string
	pid  int
}

func (e *heldError) Error() string { return fmt.Sprintf("%s is held by process %d", e.path, e.pid) }

// holder returns the pid of the process that holds a lock, 0 when nobody does.
func holder(path string) int {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err == nil {
		return 0 // closing the file gives it back
	}
	return readPID(f)
}

// upState is run/up.json: what `dsec up` runs.
type upState struct {
	PID      int                 `json:"pid"`
	Started  time.Time           `json:"started"`
	Version  string              `json:"version"`
	URL      string              `json:"url"`
	PortsURL string              `json:"portsUrl"`
	E2BURL   string              `json:"e2bUrl,omitempty"` // empty: off
	Ready    bool                `json:"ready"`            // the API has answered
	Backend  string              `json:"backend"`
	Opts     []string            `json:"opts,omitempty"`
	Roles    []supervisor.Status `json:"roles"`
}

func (d stateDir) readUp() (upState, error) {
	var s upState
	b, err := os.ReadFile(d.path("run", "up.json"))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(b, &s)
}

func (d stateDir) writeUp(s upState) error { return d.writeJSON("up.json", s) }

// writeJSON replaces a file in run/ whole.
func (d stateDir) writeJSON(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	tmp := d.path("run", "."+name)
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, d.path("run", name))
}

// removeIfThere removes files and tells which were there.
func removeIfThere(paths ...string) (gone []string) {
	for _, p := range paths {
		if os.Remove(p) == nil {
			gone = append(gone, p)
		}
	}
	return gone
}
