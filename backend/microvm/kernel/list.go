package kernel

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opendsec/dsec/internal/debkernel"
)

//go:embed microvm.config
var config string

// recipe changes when the steps of a build change what they make.
const recipe = "1"

// prefix begins the names of the directories with kernels, and sourceName is of the file that says what one was built of.
const (
	prefix     = "kernel-own-"
	sourceName = "source"
)

// Inputs are what a kernel is made of, besides the configuration and the recipe of this program.
type Inputs struct {
	Package, Version string // of the source
	Compiler         string // as it says of itself
}

// String is a line of the file that says so.
func (i Inputs) String() string { return i.Package + " " + i.Version + ", " + i.Compiler }

// parseInputs reads such a line.
func parseInputs(line string) (i Inputs, ok bool) {
	i.Package, line, ok = strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	if !ok {
		return i, false
	}
	i.Version, i.Compiler, ok = strings.Cut(line, ", ")
	return i, ok
}

// upstream is the version of the kernel.
func (i Inputs) upstream() string {
	v, _, _ := strings.Cut(i.Version, "-")
	return v
}

// settings are the lines of a configuration that say something, which its comments do not.
func settings(config string) string {
	var b strings.Builder
	for line := range strings.Lines(config) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "CONFIG_") || strings.HasPrefix(line, "# CONFIG_") && strings.HasSuffix(line, " is not set") {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// DirName is the directory of the kernel that this program makes of them.
func (i Inputs) DirName() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{recipe, settings(config), i.Package, i.Version, i.Compiler}, "\x00")))
	return fmt.Sprintf("%s%s-%x", prefix, i.upstream(), sum[:5])
}

// List returns the kernels that were built below a cache directory, whatever of, the oldest version first.
func List(cache string) (list []*debkernel.Release) {
	dirs, _ := filepath.Glob(filepath.Join(cache, prefix+"*"))
	for _, d := range dirs {
		if r := debkernel.Built(d); r != nil {
			list = append(list, r)
		}
	}
	slices.SortStableFunc(list, func(a, b *debkernel.Release) int {
		return cmp.Or(debkernel.CompareVersions(a.Version, b.Version), made(a).Compare(made(b)))
	})
	return list
}

// made is when it was.
func made(r *debkernel.Release) time.Time {
	st, err := os.Stat(filepath.Join(r.Dir, sourceName))
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

// Newest returns the newest kernel below a cache directory that is fit for use; nil: there is none.
func Newest(cache string) *debkernel.Release {
	for _, r := range slices.Backward(List(cache)) {
		if Unfit(r) == "" {
			return r
		}
	}
	return nil
}

// Unfit tells why a kernel that was built is not used unless it is asked for by its directory; "" = it is whole, and of this
// program's configuration.
func Unfit(r *debkernel.Release) string {
	b, err := os.ReadFile(filepath.Join(r.Dir, sourceName))
	if err != nil {
		return "not finished"
	}
	in, ok := parseInputs(string(b))
	if !ok || filepath.Base(r.Dir) != in.DirName() {
		return "of another configuration"
	}
	f, err := os.Open(r.Image())
	if err != nil {
		return "unreadable"
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "unreadable"
	}
	if err := debkernel.Bootable(f, st.Size()); err != nil {
		return "damaged: " + err.Error()
	}
	return ""
}
