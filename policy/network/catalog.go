package network

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"

	"github.com/opendsec/dsec/internal/spelling"
	"github.com/opendsec/dsec/sandbox"
)

// Service is a named set of domains.
type Service struct {
	Name     string
	Title    string
	Domains  []string // normalised, sorted, those of included services among them
	Ports    []PortRange
	Includes []string
	// Leaks says what a task can get or give away through the service that one would not expect. Show it to
	// whoever allows it.
	Leaks string

	parts []servicePart
}

// servicePart are domains that are open on the same ports.
type servicePart struct {
	domains []string
	ports   ports
}

// Catalog holds services by name. It does not change.
type Catalog struct {
	services map[string]*Service
	source   map[string]serviceText
}

//go:embed services.yaml
var builtinServices []byte

var builtin = sync.OnceValues(func() (*Catalog, error) {
	return (*Catalog)(nil).Extend("services.yaml", builtinServices)
})

// Builtin is the catalogue that comes with the program.
func Builtin() *Catalog {
	c, err := builtin()
	if err != nil {
		panic(err) // a test reads it
	}
	return c
}

// serviceText is a service as a file writes it.
type serviceText struct {
	Title    string     `json:"title"`
	Domains  []string   `json:"domains"`
	Ports    []portText `json:"ports"`
	Includes []string   `json:"includes"`
	Leaks    string     `json:"leaks"`
}

// portText is a port or a range, as a number or as text.
type portText string

func (p *portText) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*p = portText(s)
		return nil
	}
	var n json.Number
	if err := json.Unmarshal(b, &n); err != nil {
		return fmt.Errorf("port %s is neither a number nor a range like \"8000-8100\"", b)
	}
	*p = portText(n)
	return nil
}

// Extend reads services from YAML and returns a catalogue of them and c's; those in the file replace c's of the
// same name. A nil catalogue is empty. name is for errors, which name the service and the field.
func (c *Catalog) Extend(name string, text []byte) (*Catalog, error) {
	var file struct {
		Services map[string]serviceText `json:"services"`
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return nil, fmt.Errorf("services in %s: %w: %v", name, sandbox.ErrInvalid, err)
	}
	if len(file.Services) == 0 {
		return nil, fmt.Errorf("services in %s: %w: none found under \"services:\"", name, sandbox.ErrInvalid)
	}
	out := &Catalog{services: map[string]*Service{}, source: map[string]serviceText{}}
	if c != nil {
		maps.Copy(out.source, c.source)
	}
	maps.Copy(out.source, file.Services)
	for _, n := range slices.Sorted(maps.Keys(out.source)) {
		s, err := readService(n, out.source[n])
		if err != nil {
			return nil, fmt.Errorf("services in %s: %q: %w", name, n, err)
		}
		out.services[n] = s
	}
	for _, n := range slices.Sorted(maps.Keys(out.services)) {
		if err := out.include(out.services[n], map[string]bool{n: true}, n); err != nil {
			return nil, fmt.Errorf("services in %s: %q: %w", name, n, err)
		}
	}
	for _, s := range out.services {
		s.Domains = nil
		for _, p := range s.parts {
			s.Domains = append(s.Domains, p.domains...)
		}
		slices.Sort(s.Domains)
		s.Domains = slices.Compact(s.Domains)
	}
	return out, nil
}

func readService(name string, t serviceText) (*Service, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{sandbox.ErrInvalid}, args...)...)
	}
	if !validService(name) || name == "open" || name == "none" {
		return nil, bad("a service's name is lower-case letters, digits and dashes, and not \"open\" or \"none\"")
	}
	if t.Title == "" {
		return nil, bad("title is missing")
	}
	if len(t.Domains) == 0 && len(t.Includes) == 0 {
		return nil, bad("has neither domains nor includes")
	}
	s := &Service{Name: name, Title: t.Title, Includes: slices.Sorted(slices.Values(t.Includes)), Leaks: strings.TrimSpace(t.Leaks)}
	var part servicePart
	for _, d := range t.Domains {
		n, err := NormalizeDomain(d)
		if err != nil {
			return nil, err
		}
		if slices.Contains(part.domains, n) {
			return nil, bad("domain %s is listed twice", n)
		}
		if !strings.Contains(strings.TrimPrefix(n, "*."), ".") {
			return nil, bad("domain %q is a whole top-level domain", d)
		}
		part.domains = append(part.domains, n)
	}
	texts := make([]string, len(t.Ports))
	for i, p := range t.Ports {
		texts[i] = string(p)
	}
	if len(texts) == 0 {
		texts = []string{"443"}
	}
	list, err := parsePorts(strings.Join(texts, ","))
	if err != nil {
		return nil, err
	}
	s.Ports, part.ports = list, list
	if len(part.domains) > 0 {
		s.parts = append(s.parts, part)
	}
	return s, nil
}

// include adds the parts of the services that s includes, at any depth.
func (c *Catalog) include(into *Service, path map[string]bool, at string) error {
	for _, name := range c.source[at].Includes {
		if path[name] {
			return fmt.Errorf("%w: includes itself through %q", sandbox.ErrInvalid, name)
		}
		if _, ok := c.source[name]; !ok {
			return fmt.Errorf("%w: includes %q, which does not exist%s", sandbox.ErrInvalid, name, c.near(name))
		}
		own, err := readService(name, c.source[name])
		if err != nil {
			return err
		}
		into.parts = append(into.parts, own.parts...)
		path[name] = true
		if err := c.include(into, path, name); err != nil {
			return err
		}
		delete(path, name)
	}
	return nil
}

// Text is the catalogue as a file that Extend reads: to give it to another process.
func (c *Catalog) Text() ([]byte, error) {
	return json.Marshal(map[string]map[string]serviceText{"services": c.source})
}

// Get finds a service.
func (c *Catalog) Get(name string) (*Service, bool) {
	s, ok := c.services[name]
	return s, ok
}

// Names are the services' names, sorted.
func (c *Catalog) Names() []string { return slices.Sorted(maps.Keys(c.services)) }

// Check says whether the service that a rule names, if any, exists; its error lists near names.
func (c *Catalog) Check(r Rule) error {
	if r.Service == "" {
		return nil
	}
	if _, ok := c.services[r.Service]; ok {
		return nil
	}
	return invalid("%s: unknown service %q%s (a domain has a dot in it)", r, r.Service, c.near(r.Service))
}

// Leak is a warning about an allowed service.
type Leak struct{ Service, Text string }

// Leaks are the warnings to show to whoever chooses a policy, those of included services among them, by name.
func (c *Catalog) Leaks(p Policy) []Leak {
	found := map[string]string{}
	var add func(name string)
	add = func(name string) {
		s, ok := c.services[name]
		if _, again := found[name]; !ok || again {
			return
		}
		found[name] = s.Leaks
		for _, i := range s.Includes {
			add(i)
		}
	}
	for _, r := range p.Rules {
		if r.Action == Allow && r.Service != "" {
			add(r.Service)
		}
	}
	var out []Leak
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if found[name] != "" {
			out = append(out, Leak{name, found[name]})
		}
	}
	return out
}

// near lists names that are a slip away from a name, or all of them.
func (c *Catalog) near(name string) string {
	var out []string
	for n := range c.source {
		if d := spelling.Distance(name, n); d <= 1+len(n)/4 || len(name) > 2 && (strings.HasPrefix(n, name) || strings.HasPrefix(name, n)) {
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		return ": known are " + strings.Join(slices.Sorted(maps.Keys(c.source)), ", ")
	}
	slices.Sort(out)
	return ": did you mean " + strings.Join(out, " or ") + "?"
}

func validService(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
