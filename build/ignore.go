package build

import (
	"path"
	"strings"
)

// ignore is a .dockerignore: patterns of paths below the context that are left out; the last one that fits decides, and "!"
// takes back in.
type ignore []pattern

type pattern struct {
	parts []string
	not   bool
}

// parseIgnore reads a .dockerignore.
func parseIgnore(text string) ignore {
	var out ignore
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		p := pattern{}
		if rest, ok := strings.CutPrefix(line, "!"); ok {
			p.not, line = true, strings.TrimSpace(rest)
		}
		line = strings.Trim(path.Clean("/"+line), "/")
		if line == "" {
			continue
		}
		p.parts = strings.Split(line, "/")
		out = append(out, p)
	}
	return out
}

// excludes tells whether a path, relative to the context, is left out. A pattern that fits a directory fits all below it.
func (g ignore) excludes(name string) bool {
	parts := strings.Split(name, "/")
	out := false
	for _, p := range g {
		for n := 1; n <= len(parts); n++ {
			if matches(p.parts, parts[:n]) {
				out = !p.not
				break
			}
		}
	}
	return out
}

// mayReturn tells whether something below an excluded directory may be taken back in.
func (g ignore) mayReturn() bool {
	for _, p := range g {
		if p.not {
			return true
		}
	}
	return false
}

// matches compares components; "**" stands for any number of them.
func matches(pattern, name []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			for n := 0; n <= len(name); n++ {
				if matches(pattern[1:], name[n:]) {
					return true
				}
			}
			return false
		}
		if len(name) == 0 {
			return false
		}
		if ok, err := path.Match(pattern[0], name[0]); err != nil || !ok {
			return false
		}
		pattern, name = pattern[1:], name[1:]
	}
	return len(name) == 0
}
