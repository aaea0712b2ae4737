package kernel

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestDiffers: a line that the source did not take is named.
func TestDiffers(t *testing.T) {
	const got = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_N=12\nCONFIG_MODULES=y\n"
	if err := differs("# words\nCONFIG_A=y\nCONFIG_N=12\n# CONFIG_B is not set\n# CONFIG_GONE is not set\n", got); err != nil {
		t.Error(err)
	}
	err := differs("CONFIG_B=y\nCONFIG_N=1\n# CONFIG_MODULES is not set\nCONFIG_A=y\n", got)
	if err == nil || !strings.HasSuffix(err.Error(), ": CONFIG_B=y; CONFIG_N=1; # CONFIG_MODULES is not set") {
		t.Error(err)
	}
}

// TestConfig: no line is said twice.
func TestConfig(t *testing.T) {
	seen := map[string]bool{}
	for line := range strings.Lines(config) {
		if name, _, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.HasPrefix(name, "CONFIG_") {
			if seen[name] {
				t.Errorf("%s: twice", name)
			}
			seen[name] = true
		}
	}
}

// TestAlone: one that waits for another build says so, and ends with its context; a build that is over keeps nobody away.
func TestAlone(t *testing.T) {
	o := &Options{Cache: t.TempDir()}
	first, err := alone(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	said := ""
	second := *o
	second.Log = func(f string, _ ...any) { said += f; cancel() } // an interrupt, once it waits
	if _, err := alone(ctx, &second); !errors.Is(err, context.Canceled) || !strings.HasPrefix(said, "another build") {
		t.Errorf("%v, said %q", err, said)
	}
	first.Close()
	third, err := alone(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	third.Close()
}

// TestSettings: what only comments differ in is the same configuration.
func TestSettings(t *testing.T) {
	const want = "CONFIG_A=y\n# CONFIG_B is not set\n"
	if got := settings("# Words, and CONFIG_C=y.\n\nCONFIG_A=y\n  # CONFIG_B is not set\n# CONFIG_B is not needed\n"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if len(settings(config)) < 1000 {
		t.Error("this program's configuration is nearly empty")
	}
}
