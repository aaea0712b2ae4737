package network

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/opendsec/dsec/sandbox"
)

func TestBuiltinServices(t *testing.T) {
	c := Builtin()
	for _, n := range []string{"pypi", "npm", "golang", "debian", "ubuntu", "crates", "maven", "github", "gitlab", "huggingface", "conda", "rubygems", "dockerhub", "ghcr", "apt"} {
		if _, ok := c.Get(n); !ok {
			t.Errorf("no service %s", n)
		}
	}
	for _, n := range c.Names() {
		s, _ := c.Get(n)
		if len(s.Domains) == 0 || s.Leaks == "" && len(s.Includes) == 0 {
			t.Errorf("%s: %+v", n, s)
		}
	}
	apt, _ := c.Get("apt")
	if !slices.Contains(apt.Domains, "deb.debian.org") || !slices.Contains(apt.Domains, "archive.ubuntu.com") {
		t.Errorf("apt has %v", apt.Domains)
	}
	// Two services that are used to tell one thing from another must not share a domain.
	golang, _ := c.Get("golang")
	github, _ := c.Get("github")
	ghcr, _ := c.Get("ghcr")
	for _, d := range github.Domains {
		if slices.Contains(golang.Domains, d) || slices.Contains(ghcr.Domains, d) {
			t.Errorf("github shares %s", d)
		}
	}
}

func TestExtend(t *testing.T) {
	c, err := Builtin().Extend("site.yaml", []byte(`
services:
  pypi: {title: our mirror, domains: [Pypi.Corp.Example.], ports: [443, "8000-8010"]}
  ours: {title: all of ours, includes: [pypi, npm], domains: ["*.corp.example"]}
`))
	if err != nil {
		t.Fatal(err)
	}
	pypi, _ := c.Get("pypi")
	if !slices.Equal(pypi.Domains, []string{"pypi.corp.example"}) || len(pypi.Ports) != 2 {
		t.Errorf("pypi: %+v", pypi)
	}
	ours, _ := c.Get("ours")
	if !slices.Equal(ours.Domains, []string{"*.corp.example", "pypi.corp.example", "registry.npmjs.org"}) {
		t.Errorf("ours: %+v", ours)
	}
	if p, _ := Builtin().Get("pypi"); slices.Contains(p.Domains, "pypi.corp.example") {
		t.Error("the built-in catalogue changed")
	}
	policy, err := ParseTexts(c, "ours")
	if err != nil {
		t.Fatal(err)
	}
	prog, err := Compiler{Catalog: c}.Compile(Layer{FromSpec, policy})
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{"pypi.corp.example": true, "registry.npmjs.org": true, "pypi.org": false, "corp.example": false} {
		if d := prog.Name(host); d.Allowed != want {
			t.Errorf("%s: %v", host, d.Decision)
		}
	}
	// Each part has its own ports.
	if d, _ := prog.Explain("registry.npmjs.org", 8005, TCP); d.Allowed {
		t.Errorf("npm has pypi's ports: %v", d)
	}
}

func TestExtendRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "none found",
		"services: {}":              "none found",
		"services: [a]":             "cannot unmarshal",
		"servics: {a: {title: x}}":  "unknown field",
		"services: {a: {titel: x}}": "titel",
		"services: {a: {title: x}}": `"a": invalid argument: has neither domains nor includes`,
		"services: {A: {title: x}}": "lower-case",
		"services: {open: {title: x, domains: [a.b]}}":                             "lower-case",
		"services: {a: {domains: [a.b]}}":                                          "title is missing",
		"services: {a: {title: x, domains: ['*']}}":                                "wildcard",
		"services: {a: {title: x, domains: ['*.com']}}":                            "whole top-level",
		"services: {a: {title: x, domains: [a.example, A.Example]}}":               "listed twice",
		"services: {a: {title: x, domains: [a.b], ports: [0]}}":                    "port 0",
		"services: {a: {title: x, domains: [a.b], ports: [true]}}":                 "neither a number nor a range",
		"services: {a: {title: x, includes: [pypo]}}":                              "did you mean pypi?",
		"services: {a: {title: x, includes: [b]}, b: {title: x, includes: [a]}}":   "includes itself",
		"services: {a: {title: x, domains: [a.b]}, a: {title: y, domains: [a.b]}}": "already set",
	} {
		_, err := Builtin().Extend("site.yaml", []byte(text))
		if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "site.yaml") {
			t.Errorf("%s: %v, should say %q", text, err, want)
		}
	}
}

func TestLeaks(t *testing.T) {
	p, err := ParseTexts(Builtin(), "golang", "apt", "!github", "example.org")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range Builtin().Leaks(p) {
		names = append(names, l.Service)
		if l.Service == "golang" && !strings.Contains(l.Text, "GitHub") {
			t.Errorf("%+v", l)
		}
	}
	if !slices.Equal(names, []string{"debian", "golang", "ubuntu"}) {
		t.Errorf("%v", names)
	}
}
