package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/cluster/apiserver"
	"github.com/opendsec/dsec/cluster/engine"
	"github.com/opendsec/dsec/environment"
	"github.com/opendsec/dsec/sandbox"
)

// asked counts the questions that reach the catalogue.
type asked struct {
	apiserver.Catalogue
	n atomic.Int64
}

func (a *asked) Resolve(ctx context.Context, env *dsecv1.Environment) (*dsecv1.ResolvedEnvironment, error) {
	a.n.Add(1)
	return a.Catalogue.Resolve(ctx, env)
}

func TestResolveCache(t *testing.T) {
	ctx := ctxT(t)
	dir := t.TempDir()
	o := engine.Options{Dir: filepath.Join(dir, "d"), Socket: filepath.Join(dir, "s"), Log: quiet}
	e, err := engine.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	closeEngine := sync.OnceFunc(e.Close)
	defer closeEngine()
	etcd, err := engine.Dial("unix://" + o.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	elsewhere := environment.New(environment.NewEtcd(etcd, "/c/"), time.Now)
	behind := &asked{Catalogue: elsewhere}
	cache := apiserver.NewResolveCache(behind, etcd, "/c/", quiet)
	run, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { cache.Run(run) })
	defer wg.Wait()
	defer cancel()

	publish := func(c apiserver.Catalogue, n int) {
		l := &dsecv1.Layer{Kind: dsecv1.LayerKind_LAYER_KIND_BASE, Name: "b", Digest: fmt.Sprintf("b3:%064x", n)}
		if _, _, err := c.Publish(ctx, l); err != nil {
			t.Fatal(err)
		}
	}
	env := &dsecv1.Environment{Base: "b"}
	resolve := func() string {
		found, err := cache.Resolve(ctx, env)
		if err != nil {
			t.Fatal(err)
		}
		return found.GetLayers()[0].GetVersion()
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			if ctx.Err() != nil {
				t.Fatal(what)
			}
			time.Sleep(time.Millisecond)
		}
	}

	publish(cache, 1)
	until("it is never answered from memory", func() bool {
		before := behind.n.Load()
		return resolve() == "v1" && behind.n.Load() == before
	})
	publish(cache, 2)
	if v := resolve(); v != "v2" {
		t.Fatalf("after a version was published here: %s", v)
	}
	publish(elsewhere, 3)
	until("a version that was published elsewhere is not seen", func() bool { return resolve() == "v3" })
	if _, err := elsewhere.Delete(ctx, dsecv1.LayerKind_LAYER_KIND_BASE, "b", "v3", false); err != nil {
		t.Fatal(err)
	}
	until("a deletion elsewhere is not seen", func() bool { return resolve() == "v2" })

	closeEngine()
	if v := resolve(); v != "v2" {
		t.Fatalf("while the engine is away: %s", v)
	}
	short, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	_, err = cache.Resolve(short, &dsecv1.Environment{Base: "other"})
	if !errors.Is(err, sandbox.ErrUnavailable) && !strings.Contains(fmt.Sprint(err), "deadline") {
		t.Fatalf("an environment that nobody knows, while the engine is away: %v", err)
	}
}
