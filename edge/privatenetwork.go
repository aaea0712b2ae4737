package edge

import (
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// defaultProject is that of keys that name none.
const defaultProject = "default"

// privateNetwork is the private network that a spec asks for, named with its project, and what the sandbox is called
// there: "" for the sandbox's id.
func privateNetwork(s *dsecv1.SandboxSpec, project string) (network, name string, err error) {
	if s.PrivateNetwork == "" {
		if s.NetworkName != "" {
			return "", "", invalid("network_name %.64q: it is a name in a private network: give private_network too", s.NetworkName)
		}
		return "", "", nil
	}
	if !isLabel(s.PrivateNetwork) {
		return "", "", invalid("private_network %.64q: want 1 to 63 lower-case letters, digits and dashes, beginning and ending with a letter or digit", s.PrivateNetwork)
	}
	if s.NetworkName != "" && !isLabel(s.NetworkName) {
		return "", "", invalid("network_name %.64q: want 1 to 63 lower-case letters, digits and dashes, beginning and ending with a letter or digit", s.NetworkName)
	}
	if name = s.NetworkName; name == "" {
		// The rest of a host name with dots could stand for a name of the internet.
		name, _, _ = strings.Cut(strings.ToLower(s.Hostname), ".")
	}
	if name == "localhost" {
		return "", "", invalid("network_name %q: that is each sandbox's own; give another", name)
	}
	if project == "" {
		project = defaultProject
	}
	return project + "/" + s.PrivateNetwork, name, nil
}

// isLabel tells whether s is one part of a name, in its normal form.
func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
