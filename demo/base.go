package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
)

// importBase brings the base in. The node's newest version is used again when it was made of this very tar; else a
// registry is served on loopback (its blobs are kept for the next run), the base pushed to it, and the node pulls it.
func importBase(ctx context.Context, o options, c *client.Client, tarPath string) error {
	origin, err := tarOrigin(tarPath)
	if err != nil {
		return err
	}
	note := filepath.Join(o.state, "demo-base.json")
	done := step("base: %s", baseName)
	l, err := importedBase(ctx, c, note, origin)
	if err != nil {
		return err
	}
	if l != nil {
		done(outcome(&dsecv1.ImportLayerResponse{Layer: l, Reused: true}))
		return nil
	}
	done("not imported yet, or changed")
	if l, err = pullBase(ctx, o, c, tarPath); err != nil {
		return err
	}
	b, err := json.Marshal(baseNote{Origin: origin, Digest: l.GetDigest()})
	if err != nil {
		return err
	}
	return os.WriteFile(note, b, 0o600)
}

// baseNote says which layer was made of which tar.
type baseNote struct {
	Origin string `json:"origin"`
	Digest string `json:"digest"`
}

// tarOrigin tells one tar from another without reading it; the script that makes it names it by what is in it.
func tarOrigin(path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %d %d", path, st.Size(), st.ModTime().UnixNano()), nil
}

// importedBase returns the newest version of the base if it is what the note says was made of origin; nil = it is not.
func importedBase(ctx context.Context, c *client.Client, note, origin string) (*dsecv1.Layer, error) {
	var n baseNote
	b, err := os.ReadFile(note)
	if err != nil || json.Unmarshal(b, &n) != nil || n.Origin != origin {
		return nil, nil // no note, or of something else: import
	}
	have, err := c.Layers.ListLayers(ctx, &dsecv1.ListLayersRequest{Kind: dsecv1.LayerKind_LAYER_KIND_BASE, Name: baseName})
	if err != nil {
		return nil, fmt.Errorf("list bases: %w", err)
	}
	versions := have.GetLayers()
	if len(versions) == 0 || versions[len(versions)-1].GetDigest() != n.Digest {
		return nil, nil
	}
	return versions[len(versions)-1], nil
}

// pullBase has the node pull the tar as an image from a registry.
func pullBase(ctx context.Context, o options, c *client.Client, tarPath string) (*dsecv1.Layer, error) {
	blobs := filepath.Join(o.cache, "demo-registry")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	srv := &http.Server{Handler: registry.New(registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs)), registry.Logger(log.New(io.Discard, "", 0)))}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l) // ends with Close below
	}()
	defer func() {
		srv.Close()
		<-served
	}()
	ref := l.Addr().String() + "/debian:demo"
	done := step("pushing it to an OCI registry")
	img, err := baseImage(tarPath)
	if err != nil {
		return nil, err
	}
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		return nil, err
	}
	if err := remote.Write(tag, img, remote.WithContext(ctx)); err != nil {
		return nil, fmt.Errorf("push: %w", err)
	}
	done("")
	done = step("pulling and converting it")
	s, err := c.Layers.ImportLayer(ctx, &dsecv1.ImportLayerRequest{Kind: dsecv1.LayerKind_LAYER_KIND_BASE, Name: baseName, Source: "docker://" + ref, Insecure: true})
	if err != nil {
		return nil, fmt.Errorf("import base: %w", err)
	}
	defer s.Close()
	for s.Receive() {
		if s.Msg().GetLayer() != nil {
			done(outcome(s.Msg()))
			return s.Msg().GetLayer(), nil
		}
	}
	return nil, fmt.Errorf("import base: the stream ended without a layer: %w", s.Err())
}

func baseImage(tarPath string) (v1.Image, error) {
	layer, err := tarball.LayerFromFile(tarPath, tarball.WithCompressionLevel(1))
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	return mutate.Config(img, v1.Config{
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1"},
		Cmd: []string{"bash"},
	})
}
