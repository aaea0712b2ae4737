package network

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what the scripts in testdata give")

// TestScripts runs testdata/*.txt: lines that begin with "> " are commands, what follows is what they print.
//
//	> compile spec: pypi !npm | project: open | node: 203.0.113.5/32    the program in force for what follows
//	> parse RULE...           each as it is understood, or the refusal
//	> explain HOST[@ADDR] PORT PROTOCOL
//	> name NAME               what the resolver does
//	> open NAME ADDR          what an answer opens
//	> admit NAME ADDR PORT    what the proxy does
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			s := script{}
			for line := range strings.Lines(string(b)) {
				switch {
				case strings.HasPrefix(line, "> "):
					fmt.Fprintf(&got, "%s%s", line, s.run(strings.TrimSpace(line[2:])))
				case strings.HasPrefix(line, "#"), line == "\n":
					got.WriteString(line)
				}
			}
			if *update {
				if err := os.WriteFile(f, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got.String() != string(b) {
				t.Errorf("%s differs (-update rewrites it); got:\n%s", f, got.String())
			}
		})
	}
}

type script struct{ p *Program }

func (s *script) run(line string) string {
	verb, rest, _ := strings.Cut(line, " ")
	args := strings.Fields(rest)
	switch verb {
	case "compile":
		c := Compiler{}
		var layers []Layer
		for part := range strings.SplitSeq(rest, "|") {
			if part == "" {
				continue
			}
			source, texts, _ := strings.Cut(strings.TrimSpace(part), ":")
			if source == "node" {
				for _, n := range strings.Fields(texts) {
					c.Node = append(c.Node, netip.MustParsePrefix(n))
				}
				continue
			}
			p, err := ParseTexts(Builtin(), strings.Fields(texts)...)
			if err != nil {
				return err.Error() + "\n"
			}
			layers = append(layers, Layer{Source(source), p})
		}
		p, err := c.Compile(layers...)
		if err != nil {
			return err.Error() + "\n"
		}
		s.p = p
		return "ok\n"
	case "table":
		var out strings.Builder
		for _, e := range s.p.Static {
			if _, ok := alwaysDenied(e.Prefix); !ok || rest == "all" {
				fmt.Fprintf(&out, "%s %s\n", e.Prefix, e.Opening)
			}
		}
		return out.String()
	case "parse":
		r, err := Parse(rest)
		if err == nil {
			err = Builtin().Check(r)
		}
		if err != nil {
			return err.Error() + "\n"
		}
		return r.String() + "\n"
	case "explain":
		port, err := strconv.ParseUint(args[1], 10, 16)
		proto, ok := ParseProtocol(args[2])
		if err != nil || !ok {
			return "bad command\n"
		}
		d, err := s.p.Explain(args[0], uint16(port), proto)
		if err != nil {
			return err.Error() + "\n"
		}
		return d.String() + "\n"
	case "name":
		d := s.p.Name(args[0])
		out := d.String()
		for _, o := range d.Openings {
			out += "; " + o.String()
		}
		if d.Wild {
			out += " (wild)"
		}
		return out + "\n"
	case "open":
		list, why, ok := s.p.Open(args[0], netip.MustParseAddr(args[1]))
		if !ok {
			return "dropped: " + why + "\n"
		}
		return fmt.Sprintf("%v\n", list)
	case "admit":
		port, _ := strconv.ParseUint(args[2], 10, 16)
		d, answered := s.p.Admit(args[0], netip.MustParseAddr(args[1]), uint16(port))
		if d.Allowed && answered {
			return d.String() + " (if answered)\n"
		}
		return d.String() + "\n"
	}
	return "unknown command\n"
}
