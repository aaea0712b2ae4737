package network

import (
	"cmp"
	"errors"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// NormalizeDomain brings a domain or wildcard into the one form that is compared: ASCII (IDNA), lower case, no trailing
// dot. It refuses what can be no name of a host.
func NormalizeDomain(s string) (string, error) {
	name, wild := strings.CutPrefix(s, "*.")
	plain := strings.TrimSuffix(name, ".")
	switch {
	case plain == "" || strings.HasPrefix(plain, ".") || strings.HasSuffix(plain, ".") || strings.Contains(plain, ".."):
		return "", invalid("domain %q has an empty part", s)
	case strings.Contains(plain, "*"):
		return "", invalid("domain %q: a wildcard is \"*.\" followed by a whole domain, like *.example.org", s)
	}
	ascii, err := idna.Lookup.ToASCII(plain)
	if err == nil {
		// What comes out must be a name as well: the first pass repairs bytes that are no UTF-8.
		ascii, err = idna.Lookup.ToASCII(strings.ToLower(ascii))
	}
	if err != nil || !utf8.ValidString(plain) {
		return "", invalid("domain %q is not a valid name: %v", s, cmp.Or(err, errors.New("it is no UTF-8")))
	}
	if len(ascii) > 253 {
		return "", invalid("domain %.40q... is longer than 253 bytes", s)
	}
	labels := strings.Split(ascii, ".")
	for _, l := range labels {
		if len(l) == 0 || len(l) > 63 {
			return "", invalid("domain %q has a part that is empty or longer than 63 bytes", s)
		}
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" {
		return "", invalid("%q is neither an address nor a domain: the last part of a domain is no number", s)
	}
	if wild {
		return "*." + ascii, nil
	}
	if len(labels) == 1 {
		return "", invalid("domain %q has no dot in it: names inside a sandbox's own network need no rule", s)
	}
	return ascii, nil
}

// asked brings a name as it arrives on the wire (a question, SNI, Host) into the form that is compared. A name with any
// other byte than letters, digits, dashes and underscores is no host's, and matches no rule: an escaped dot inside of a
// label would otherwise pass for one between two.
func asked(name string) (string, bool) {
	name = strings.TrimSuffix(name, ".")
	if name == "" || len(name) > 253 {
		return "", false
	}
	label := 0
	for i := range len(name) {
		c := name[i]
		if label++; c == '.' {
			if label == 1 {
				return "", false
			}
			label = 0
		}
		if label > 63 {
			return "", false
		}
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return "", false
		}
	}
	return strings.ToLower(name), label > 0
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}
