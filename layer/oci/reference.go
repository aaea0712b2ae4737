package oci

import (
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/opendsec/dsec/sandbox"
)

const scheme = "docker://"

// parseSource reads docker://HOST/NAME:TAG or docker://HOST/NAME@DIGEST; the scheme, the host and the tag may be
// missing, as docker has it.
func parseSource(source string, insecure bool) (name.Reference, error) {
	s := strings.TrimPrefix(source, scheme)
	if strings.Contains(s, "://") {
		return nil, fmt.Errorf("image source %.200q: %w: want docker://HOST/NAME:TAG", source, sandbox.ErrInvalid)
	}
	var opts []name.Option
	if insecure {
		opts = append(opts, name.Insecure)
	}
	ref, err := name.ParseReference(s, opts...)
	if err != nil { // the library's own words are the source again, as long and as unprintable as it is
		return nil, fmt.Errorf("image source %.200q: %w: want docker://HOST/NAME:TAG or docker://HOST/NAME@sha256:DIGEST, in lower case", source, sandbox.ErrInvalid)
	}
	return ref, nil
}

// Canonical returns the one form of all spellings of a source. Error: sandbox.ErrInvalid.
func Canonical(source string) (string, error) {
	ref, err := parseSource(source, false)
	if err != nil {
		return "", err
	}
	return scheme + ref.Name(), nil
}

// SuggestName derives a name for the catalogue from a source: the repository without "library/", and the tag
// unless it is "latest". Error: sandbox.ErrInvalid.
func SuggestName(source string) (string, error) {
	ref, err := parseSource(source, false)
	if err != nil {
		return "", err
	}
	s := strings.TrimPrefix(ref.Context().RepositoryStr(), "library/")
	if tag, ok := ref.(name.Tag); ok && tag.TagStr() != name.DefaultTag {
		s += ":" + tag.TagStr()
	}
	return s, nil
}
