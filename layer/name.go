package layer

import (
	"fmt"
	"strings"

	"github.com/opendsec/dsec/sandbox"
)

// MaxNameLen bounds the names of bases, workspaces and toolkits, bytes.
const MaxNameLen = 128

// CheckName tells whether a base, workspace or toolkit may be called s: lower-case letters, digits and . _ - / :
// with a letter or digit at the beginning, at the end, and on both sides of every slash and colon
// ("python:3.12", "team/app"). Error: sandbox.ErrInvalid.
func CheckName(s string) error {
	fail := func(why string) error {
		return fmt.Errorf("name %.150q: %w: %s", s, sandbox.ErrInvalid, why)
	}
	if s == "" || len(s) > MaxNameLen {
		return fail(fmt.Sprintf("it must have 1 to %d characters", MaxNameLen))
	}
	const inner = "._-/:"
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && strings.IndexByte(inner, c) < 0 {
			return fail(fmt.Sprintf("character %d is not a lower-case letter, a digit or one of %s", i+1, inner))
		}
		edge := i == 0 || i == len(s)-1 || strings.IndexByte("/:", s[i-1]) >= 0 || strings.IndexByte("/:", s[i+1]) >= 0
		if !alnum && edge {
			return fail("it must begin and end with a letter or digit, and so must its parts between / and :")
		}
	}
	if strings.HasPrefix(s, digestPrefix) {
		return fail("it looks like a digest")
	}
	return nil
}
