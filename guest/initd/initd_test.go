package initd_test

import (
	"os"
	"testing"
	"time"

	"github.com/opendsec/dsec/guest/guesttest"
	"github.com/opendsec/dsec/guest/wire"
)

func TestMain(m *testing.M) {
	code := m.Run()
	guesttest.Cleanup()
	os.Exit(code)
}

func TestEcho(t *testing.T) {
	_, c, r := guesttest.Sandbox(t, guesttest.Options{}, nil)
	ctx, cancel := guesttest.Context(t)
	defer cancel()
	began := time.Now()
	if _, err := c.Start(ctx, &wire.Start{ID: "a", Shell: "echo hello; echo oops >&2; id; exit 3"}, nil); err != nil {
		t.Fatal(err)
	}
	res, err := r.Wait(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v %s %+v", time.Since(began), res.All, res.Exit)
}
