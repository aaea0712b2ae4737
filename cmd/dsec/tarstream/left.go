package tarstream

import (
	"fmt"
	"strconv"
	"strings"
)

// maxNamed is how many names Left keeps; it counts the rest.
const maxNamed = 3

// Left is what a copy leaves out. A nil *Left keeps nothing.
type Left struct {
	n     int
	names []string
}

func (l *Left) add(name, what string) {
	if l == nil {
		return
	}
	if l.n++; len(l.names) < maxNamed {
		l.names = append(l.names, fmt.Sprintf("%s (%s)", strconv.Quote(name), what))
	}
}

// String says how much was left out and names the first; "" when it was nothing.
func (l *Left) String() string {
	if l == nil || l.n == 0 {
		return ""
	}
	s := fmt.Sprintf("%d left out: %s", l.n, strings.Join(l.names, ", "))
	if l.n > len(l.names) {
		s += ", ..."
	}
	return s
}
