package network

import (
	"strings"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/policy/network/networktest"
)

// badRules are refused whole, with what to write instead.
var badRules = map[string]struct {
	rules []string
	says  string
}{
	"both allowed and denied":     {[]string{"pypi", "!pypi"}, "both allowed and denied"},
	"the same under another name": {[]string{"bücher.example", "!xn--bcher-kva.example."}, "both allowed and denied"},
	"everything":                  {[]string{"*"}, `use the policy "open"`},
	"everything on a port":        {[]string{"*:443"}, `use the policy "open"`},
	"port 0":                      {[]string{"pypi.org:0"}, "ports are 1 to 65535"},
	"ports in reverse":            {[]string{"pypi.org:443-80"}, "write 80-443"},
	"host bits":                   {[]string{"203.0.113.9/24"}, "write 203.0.113.0/24 for the range, or 203.0.113.9 for the one address"},
	"host bits of IPv6":           {[]string{"2001:db8::1/32"}, "write 2001:db8::/32 for the range, or 2001:db8::1 for the one address"},
	"an unknown service":          {[]string{"pipy"}, "did you mean pypi?"},
	"one that is wrong of many":   {[]string{"pypi", "npm", "golangs"}, "did you mean golang?"},
	"a wildcard inside":           {[]string{"a.*.example"}, "like *.example.org"},
	"a name without a part":       {[]string{"a..example"}, "empty part"},
	"only a dot":                  {[]string{"."}, "\".\""},
	"a URL":                       {[]string{"https://pypi.org/simple"}, "write its host alone"},
	"the metadata service":        {[]string{"169.254.169.254"}, "always denied, no rule can allow it"},
	"nothing":                     {[]string{""}, "is empty"},
	"none with a rule":            {[]string{"none", "pypi"}, "none"},
}

// testBadInput: what makes no sense is refused at creation and later, and changes nothing; what looks odd and is right works.
func testBadInput(t *testing.T, w *world, s *sites) {
	b := w.box(t, "pypi")
	paused, ended := w.box(t, "pypi"), w.box(t, "pypi")
	defer b.stop()
	defer paused.stop()
	ended.stop()
	if _, err := w.Client.Sandboxes.PauseSandbox(t.Context(), &dsecv1.PauseSandboxRequest{SandboxId: paused.id}); err != nil {
		t.Fatal(err)
	}
	refused := func(what string, err error, code connect.Code, says string) {
		t.Helper()
		if connect.CodeOf(err) != code || err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %v that says %q", what, err, code, says)
		}
	}
	for name, c := range badRules {
		for _, x := range []*box{b, paused} {
			_, err := w.Client.Sandboxes.SetNetwork(t.Context(), &dsecv1.SetNetworkRequest{SandboxId: x.id, Rules: rules(c.rules)})
			refused(name, err, connect.CodeInvalidArgument, c.says)
		}
		made, err := w.Client.Create(t.Context(), &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Base: base}, NetworkRules: rules(c.rules)}})
		refused(name+", at creation", err, connect.CodeInvalidArgument, c.says)
		if len(made) != 0 {
			t.Errorf("%s: created %v", name, made)
		}
	}
	for _, x := range []*box{b, paused} {
		if n := x.info().GetNetwork(); n.GetGenerationAsked() != 1 || n.GetGenerationApplied() != 1 || len(n.GetRules()) != 1 {
			t.Errorf("after the refusals: %v", n)
		}
	}
	b.reach("https://pypi.org/", "200 site=pypi.org host=pypi.org")
	_, err := w.Client.Sandboxes.SetNetwork(t.Context(), &dsecv1.SetNetworkRequest{SandboxId: ended.id, Rules: rules([]string{"open"})})
	refused("a sandbox that was stopped", err, connect.CodeFailedPrecondition, "ended")
	_, err = w.Client.Sandboxes.SetNetwork(t.Context(), &dsecv1.SetNetworkRequest{SandboxId: b.id[:4] + strings.Repeat("a", len(b.id)-4), Rules: rules([]string{"open"})})
	refused("a sandbox that never was", err, connect.CodeNotFound, "sandbox")

	// Rules that overlap: the one that denies wins, however they are ordered and whichever is narrower.
	shared := s.shared.V4[0].String()
	for _, set := range [][]string{{"203.0.113.0/24:7000/tcp", "!" + shared}, {"!203.0.113.0/24", shared + ":7000/tcp"}, {"shared.example", "!*.example"}} {
		b.set(set...)
		b.reach("tcp "+addr(s.shared.V4[0], "7000"), "denied")
		b.reach("https://shared.example/", "name")
	}
	// Names as people write them.
	w.inet.Site("xn--bcher-kva.example", networktest.V4(1))
	b.set("BÜCHER.example.", "203.0.113.0/25:7000/tcp", "203.0.113.0/24:7000-7001/tcp")
	for _, url := range []string{"https://xn--bcher-kva.example/", "https://XN--BCHER-KVA.Example/", "http://xn--bcher-kva.example./"} { // TLS has no dot there
		if got := b.sh("reach " + url); !strings.HasPrefix(got, "200 site=xn--bcher-kva.example") {
			t.Errorf("%s: %q", url, got)
		}
	}
	b.reach("tcp "+addr(s.echo.at, "7000"), "open")
}
