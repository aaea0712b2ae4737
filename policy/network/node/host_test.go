package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/sandbox"
)

// TestResolvers reads the name servers of a host as its C library does.
func TestResolvers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	for text, want := range map[string]string{
		"nameserver 192.0.2.1\n": "[192.0.2.1:53]",
		"# nameserver 192.0.2.9\nnameserver\nnameserver x\nsearch a\n  nameserver\t2001:db8::1 #\n": "[[2001:db8::1]:53]",
		strings.Repeat("nameserver 192.0.2.1\n", 5):                                                 "[192.0.2.1:53 192.0.2.1:53 192.0.2.1:53]",
		"search example.org\n": "",
		"":                     "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := resolvers(path)
		if want == "" {
			if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "names no name server") {
				t.Errorf("%q: %v, %v", text, got, err)
			}
		} else if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
	if _, err := resolvers(path + ".none"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestOwnAddresses: the host's own are named one by one, without its loopback.
func TestOwnAddresses(t *testing.T) {
	got, err := ownAddresses()
	if err != nil || got == nil { // nil would mean: look again
		t.Fatalf("%v, %v", got, err)
	}
	for _, p := range got {
		if !p.IsSingleIP() || p.Addr().IsLoopback() || p.Addr().Is4In6() || p == (netip.Prefix{}) {
			t.Errorf("%s", p)
		}
	}
}
