package e2b

import (
	"net/http"
	"slices"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// backendMark stands between a template and the kind of machine that its sandboxes are to be: base+microvm. It is no part of
// any name.
const backendMark = "+"

// backends are those that have an agent inside, which all that clients do needs.
var backends = map[string]dsecv1.Backend{
	"container": dsecv1.Backend_BACKEND_CONTAINER,
	"microvm":   dsecv1.Backend_BACKEND_MICROVM,
}

// splitBackend takes the kind of machine off what clients call a template; unspecified = the node's. Error: 400.
func splitBackend(template string) (name string, b dsecv1.Backend, err error) {
	name, word, marked := strings.Cut(template, backendMark)
	if !marked {
		return name, dsecv1.Backend_BACKEND_UNSPECIFIED, nil
	}
	b, ok := backends[word]
	if !ok {
		known := make([]string, 0, len(backends))
		for k := range backends {
			known = append(known, backendMark+k)
		}
		slices.Sort(known)
		return "", 0, refused(http.StatusBadRequest, "template %.100q: %q is no kind of machine that templates can ask for: want %s, or nothing", template, word, strings.Join(known, " or "))
	}
	return name, b, nil
}
