package edge

import (
	"testing"
	"time"

	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/sandbox"
)

func TestClassify(t *testing.T) {
	term := map[int32]bool{15: true}
	for name, c := range map[string]struct {
		exit wire.Exit
		ev   evidence
		kind sandbox.Kind
	}{
		"zero":                      {wire.Exit{}, evidence{}, sandbox.KindExited},
		"zero, a child was killed":  {wire.Exit{}, evidence{oomKills: 1}, sandbox.KindExited},
		"one":                       {wire.Exit{Code: 1}, evidence{}, sandbox.KindExited},
		"one, disk full":            {wire.Exit{Code: 1}, evidence{diskFull: true}, sandbox.KindDiskFull},
		"one, pool full":            {wire.Exit{Code: 1}, evidence{poolFull: true}, sandbox.KindStoreFault},
		"137 by a full disk":        {wire.Exit{Code: 137}, evidence{diskFull: true}, sandbox.KindDiskFull},
		"signal":                    {wire.Exit{Signal: 11}, evidence{}, sandbox.KindSignalled},
		"killed from inside":        {wire.Exit{Signal: 9}, evidence{}, sandbox.KindSignalled},
		"killed for memory":         {wire.Exit{Signal: 9}, evidence{oomKills: 1}, sandbox.KindOOMKilled},
		"child killed for memory":   {wire.Exit{Code: 137}, evidence{oomKills: 2}, sandbox.KindOOMKilled},
		"killed by request":         {wire.Exit{Signal: 9, Killed: true}, evidence{killed: true, oomKills: 1}, sandbox.KindKilled},
		"terminated by request":     {wire.Exit{Signal: 15, Killed: true}, evidence{signals: term}, sandbox.KindKilled},
		"handled the request":       {wire.Exit{Code: 0}, evidence{signals: term}, sandbox.KindExited},
		"another signal came first": {wire.Exit{Signal: 11}, evidence{signals: term}, sandbox.KindSignalled},
		"timed out":                 {wire.Exit{Signal: 9, TimedOut: true}, evidence{oomKills: 1}, sandbox.KindTimedOut},
		"timed out, exited well":    {wire.Exit{Code: 0, TimedOut: true}, evidence{}, sandbox.KindTimedOut},
	} {
		f := classify(c.exit, c.ev)
		if f.Kind != c.kind {
			t.Errorf("%s: %s, want %s", name, f.Kind, c.kind)
		}
		if f.Blame != sandbox.Blames[f.Kind] || (f.Blame == sandbox.BlameInfra) != c.ev.poolFull {
			t.Errorf("%s: blame %s", name, f.Blame)
		}
	}
}

func TestEveryErrorHasOneCode(t *testing.T) {
	for code := range wire.CodeWrongState + 1 {
		c, ok := guestCodes[code]
		if !ok || c.word == "" {
			t.Errorf("wire code %d is not mapped", code)
		}
	}
	for _, k := range kinds {
		if codeOf(k.err) != k.code {
			t.Errorf("%v maps to %v, want %v", k.err, codeOf(k.err), k.code)
		}
	}
	for kind := range sandbox.Blames {
		if f := failureFrom(failureProto(sandbox.NewFailure(kind, "x"))); f.Kind != kind || f.Blame != sandbox.Blames[kind] {
			t.Errorf("failure %s comes back as %v", kind, f)
		}
	}
}

func TestQuantiles(t *testing.T) {
	for i := range 8 * 40 {
		if got := bucketOf(usec(middle(i))); got != i {
			t.Fatalf("the middle of bucket %d, %v, lies in %d", i, middle(i), got)
		}
	}
}

func usec(us float64) time.Duration { return time.Duration(us * float64(time.Microsecond)) }
