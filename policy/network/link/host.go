package link

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/opendsec/dsec/internal/linux"
)

// hostFile names the namespace of a router's uplink by the kernel's number, which no other has until the machine is
// started again: routers are pinned where processes of several namespaces see them.
func (c Config) hostFile() string { return filepath.Join(c.Dir, "host") }

// host is the number of the namespace that the uplink's other end lies in.
func (u *Uplink) host() (cookie string, err error) {
	err = u.atHost(func(*linux.Route) error {
		n, err := linux.NetSpaceCookie()
		cookie = strconv.FormatUint(n, 10)
		return err
	})
	return cookie, err
}

// elsewhere tells whether a router's uplink ends in another namespace than u means.
func (u *Uplink) elsewhere(c Config) (bool, error) {
	b, err := os.ReadFile(c.hostFile())
	if errors.Is(err, os.ErrNotExist) { // of a version that did not write it
		return false, nil
	}
	if err != nil {
		return false, err
	}
	here, err := u.host()
	return here != strings.TrimSpace(string(b)), err
}

// Routers are the directories of all routers whose uplinks end in this process's namespace, as far as its mounts show
// them: whoever finds the uplink's name taken looks for its owner there.
func Routers() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		// ID, parent, device, root, place, options, ..., "-", type, ...
		before, after, _ := strings.Cut(line, " - ")
		f := strings.Fields(before)
		if len(f) < 5 || !strings.HasPrefix(after, "nsfs ") {
			continue
		}
		place := unescape.Replace(f[4])
		cfg := Config{Dir: filepath.Dir(place)}
		if place != cfg.file() {
			continue
		}
		if _, err := os.Stat(cfg.hostFile()); err != nil {
			continue
		}
		away, err := (&Uplink{}).elsewhere(cfg)
		if err != nil {
			return nil, fmt.Errorf("router in %s: %w", cfg.Dir, err)
		}
		if !away {
			out = append(out, cfg.Dir)
		}
	}
	return out, nil
}

// unescape undoes what the kernel does to blanks in the names of mounts.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// Identity names the router of a directory, apart from those that were there before it. Error: os.ErrNotExist.
func Identity(dir string) (string, error) {
	var st syscall.Stat_t
	file := Config{Dir: dir}.file()
	if err := syscall.Stat(file, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: file, Err: err}
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}
