package build_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/opendsec/dsec/build"
	"github.com/opendsec/dsec/sandbox"
)

// What is wrong, or cannot be built, is said with its line before anything is done.
func TestRefused(t *testing.T) {
	for text, want := range map[string]struct {
		kind error
		says string
	}{
		"":                                           {sandbox.ErrInvalid, "file with no instructions"},
		"RUN x":                                      {sandbox.ErrInvalid, "line 1: "},
		"FROM a\nRNU x":                              {sandbox.ErrInvalid, "line 2: invalid argument: unknown instruction: RNU"},
		"FROM a\n\nCOPY x":                           {sandbox.ErrInvalid, "line 3: "},
		"FROM a\nRUN x\\\n y\nENV":                   {sandbox.ErrInvalid, "line 4: "},
		"FROM a\n# gr\xfc\xdfe\nRUN echo \xe9":       {sandbox.ErrInvalid, `line 3: invalid argument: "RUN echo \xe9" is not UTF-8`},
		"FROM a\nFROM b":                             {sandbox.ErrUnsupported, "line 2: unsupported: builds of several stages"},
		"FROM --platform=linux/arm64 a":              {sandbox.ErrUnsupported, "line 1: unsupported: FROM --platform"},
		"FROM a\nADD http://x/y /z":                  {sandbox.ErrUnsupported, "line 2: unsupported: ADD of something that is not in the context; fetch it with RUN"},
		"FROM a\nADD x.tar.gz /z":                    {sandbox.ErrUnsupported, "COPY it and unpack it with RUN"},
		"FROM a\nHEALTHCHECK NONE":                   {sandbox.ErrUnsupported, "line 2: unsupported: HEALTHCHECK"},
		"FROM a\nCOPY --from=b x y":                  {sandbox.ErrUnsupported, "line 2: unsupported: COPY --from"},
		"FROM a\nCOPY --parents x y":                 {sandbox.ErrUnsupported, "line 2: "},
		"FROM a\nVOLUME /x":                          {sandbox.ErrUnsupported, "line 2: unsupported: VOLUME"},
		"FROM a\nONBUILD RUN x":                      {sandbox.ErrUnsupported, "line 2: unsupported: ONBUILD"},
		"FROM a\nSTOPSIGNAL 9":                       {sandbox.ErrUnsupported, "line 2: "},
		"FROM a\nRUN <<E\nx\nE\n":                    {sandbox.ErrUnsupported, "line 2: unsupported: RUN with a here-document"},
		"FROM a\nCOPY <<E /x\nx\nE\n":                {sandbox.ErrUnsupported, "line 2: unsupported: COPY of a here-document"},
		"FROM a\nRUN --mount=type=cache,target=/x y": {sandbox.ErrUnsupported, "line 2: unsupported: RUN --mount"},
		"FROM a\nRUN --network=none y":               {sandbox.ErrUnsupported, "line 2: unsupported: RUN --network"},
	} {
		_, err := build.Parse([]byte(text))
		var le *build.LineError
		if !errors.Is(err, want.kind) || !errors.As(err, &le) || !strings.Contains(fmt.Sprint(err), want.says) {
			t.Errorf("%q: %v; want %v that says %q", text, err, want.kind, want.says)
		}
	}
	f, err := build.Parse([]byte("# escape=`\nARG V=1\nFROM a:$V\nRUN x `\n y\nWORKDIR /x\n"))
	if err != nil || f.From != "a:$V" || len(f.Steps) != 2 || f.Steps[1].Line != 6 {
		t.Errorf("%+v, %v", f, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("FROM a\nRUN --mount=type=x y\nCOPY [\"a\",\"b\"]\nENV a=b"))
	f.Fuzz(func(_ *testing.T, text []byte) { _, _ = build.Parse(text) })
}
