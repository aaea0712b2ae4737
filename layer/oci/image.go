package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// Image is one image for one platform, not yet read.
type Image struct {
	// Digest is that of the image's manifest; empty for old `docker save` archives, which have none.
	Digest string
	Config layer.Config
	// Size is the sum of the layers as they are stored, bytes.
	Size int64

	layers   []blob // bottom to top
	source   source
	remote   bool // layers are fetched before they are read
	retry    time.Duration
	patience time.Duration
	keep     string // where fetched layers wait for another import
}

// blob is a piece of content and the digest by which it is verified.
type blob struct {
	digest v1.Hash
	size   int64  // -1 = not stated
	path   string // in archives that go by file names
	// plain says that the digest is of the decompressed content.
	plain bool
	// manifest says that a registry keeps it among the manifests.
	manifest bool
}

// source opens content by digest or path.
type source interface {
	open(ctx context.Context, b blob) (io.ReadCloser, error)
}

const (
	maxDocument = 8 << 20 // manifests, indexes and configurations, bytes
	maxLayers   = 1024
	maxNesting  = 3 // indexes within indexes
)

// Platform is what images are chosen for.
type Platform struct{ OS, Architecture string }

// DefaultPlatform is what sandboxes run.
var DefaultPlatform = Platform{OS: "linux", Architecture: "amd64"}

// document reads a small verified blob.
func document(ctx context.Context, src source, b blob) ([]byte, error) {
	if b.size > maxDocument {
		return nil, fmt.Errorf("%w: %s has %d bytes, too many for what it is", sandbox.ErrInvalid, b.digest, b.size)
	}
	r, err := src.open(ctx, b)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	v := newVerifier(r, b)
	data, err := io.ReadAll(io.LimitReader(v, maxDocument+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxDocument {
		return nil, fmt.Errorf("%w: %s has more than %d bytes", sandbox.ErrInvalid, b.digest, maxDocument)
	}
	return data, nil
}

func descriptorBlob(d v1.Descriptor) blob { return blob{digest: d.Digest, size: d.Size} }

// resolve follows an index to the image for the platform, and reads its manifest and configuration.
func resolve(ctx context.Context, src source, raw []byte, mediaType types.MediaType, digest v1.Hash, p Platform) (*Image, error) {
	for range maxNesting {
		kind := mediaType
		if kind == "" {
			kind = sniff(raw)
		}
		switch {
		case kind.IsIndex():
			d, err := choose(raw, p)
			if err != nil {
				return nil, err
			}
			b := descriptorBlob(d)
			b.manifest = true
			if raw, err = document(ctx, src, b); err != nil {
				return nil, fmt.Errorf("manifest %s: %w", d.Digest, err)
			}
			mediaType, digest = d.MediaType, d.Digest
		case kind.IsImage():
			return readManifest(ctx, src, raw, digest, p)
		default:
			return nil, fmt.Errorf("%w: manifest of type %.100q; an image of Docker schema 2 or OCI 1 is needed", sandbox.ErrUnsupported, kind)
		}
	}
	return nil, fmt.Errorf("%w: indexes nested too deep", sandbox.ErrInvalid)
}

// sniff finds the type of a manifest from its own fields, for descriptors without one.
func sniff(raw []byte) types.MediaType {
	var m struct {
		MediaType types.MediaType   `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
		Layers    []json.RawMessage `json:"layers"`
	}
	if json.Unmarshal(raw, &m) != nil {
		return ""
	}
	switch {
	case m.MediaType != "":
		return m.MediaType
	case m.Manifests != nil:
		return types.OCIImageIndex
	case m.Layers != nil:
		return types.OCIManifestSchema1
	}
	return ""
}

// choose picks the entry of an index for the platform.
func choose(raw []byte, p Platform) (v1.Descriptor, error) {
	index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("%w: index: %w", sandbox.ErrInvalid, err)
	}
	var images []v1.Descriptor // entries that are images or indexes, and not attestations
	var has []string
	for _, d := range index.Manifests {
		if !d.MediaType.IsImage() && !d.MediaType.IsIndex() || d.Annotations["vnd.docker.reference.type"] != "" {
			continue
		}
		images = append(images, d)
		if d.Platform != nil {
			if d.Platform.OS == p.OS && d.Platform.Architecture == p.Architecture {
				return d, nil
			}
			has = append(has, d.Platform.String())
		}
	}
	if len(images) == 1 && images[0].Platform == nil { // a layout of one image
		return images[0], nil
	}
	if len(images) == 0 {
		return v1.Descriptor{}, fmt.Errorf("%w: the index holds no image", sandbox.ErrInvalid)
	}
	if len(has) == 0 {
		return v1.Descriptor{}, fmt.Errorf("%w: it holds %d images and names no platforms; store one image", sandbox.ErrInvalid, len(images))
	}
	return v1.Descriptor{}, fmt.Errorf("%w: no image for %s/%s; there are: %s", sandbox.ErrUnsupported, p.OS, p.Architecture, strings.Join(has, ", "))
}

// readManifest reads an image's manifest and configuration.
func readManifest(ctx context.Context, src source, raw []byte, digest v1.Hash, p Platform) (*Image, error) {
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("%w: manifest: %w", sandbox.ErrInvalid, err)
	}
	if len(m.Layers) > maxLayers {
		return nil, fmt.Errorf("%w: %d layers", sandbox.ErrInvalid, len(m.Layers))
	}
	img := &Image{Digest: digest.String(), source: src}
	for _, d := range m.Layers {
		if err := checkLayerType(d); err != nil {
			return nil, err
		}
		if d.Size < 0 || img.Size+d.Size < img.Size {
			return nil, fmt.Errorf("%w: layer %s of %d bytes", sandbox.ErrInvalid, d.Digest, d.Size)
		}
		img.Size += d.Size
		img.layers = append(img.layers, descriptorBlob(d))
	}
	rawConfig, err := document(ctx, src, descriptorBlob(m.Config))
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", m.Config.Digest, err)
	}
	_, err = img.readConfig(rawConfig, p)
	return img, err
}

func checkLayerType(d v1.Descriptor) error {
	switch d.MediaType {
	case types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer, types.DockerLayer, types.DockerUncompressedLayer:
		if len(d.URLs) == 0 {
			return nil
		}
		return fmt.Errorf("%w: layer %s lies outside its registry", sandbox.ErrUnsupported, d.Digest)
	}
	return fmt.Errorf("%w: layer %s has type %.100q; tar, tar+gzip and tar+zstd are understood", sandbox.ErrUnsupported, d.Digest, d.MediaType)
}

// readConfig takes over what applies at run, and checks the platform.
func (img *Image) readConfig(raw []byte, p Platform) (*v1.ConfigFile, error) {
	c, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("%w: image configuration: %w", sandbox.ErrInvalid, err)
	}
	if c.OS != "" && c.OS != p.OS || c.Architecture != "" && c.Architecture != p.Architecture {
		return nil, fmt.Errorf("%w: the image is for %s/%s, sandboxes run %s/%s", sandbox.ErrUnsupported, c.OS, c.Architecture, p.OS, p.Architecture)
	}
	img.Config = layer.Config{
		Env: c.Config.Env, User: c.Config.User, Workdir: c.Config.WorkingDir,
		Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd,
	}
	return c, nil
}
