package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/opendsec/dsec/sandbox"
)

// RegistryOptions say how to speak to registries. The zero value is good.
type RegistryOptions struct {
	Insecure bool           // plain http; loopback registries always may
	Keychain authn.Keychain // nil = docker's configuration files
	Platform Platform       // zero = DefaultPlatform
	// Retry is the wait before the second of four attempts; it doubles. 0 = one second.
	Retry time.Duration
}

const attempts = 4

// registry is the source of one repository.
type registry struct {
	repo   name.Repository
	puller *remote.Puller
}

// Pull finds an image in a registry; its layers are fetched by AddTo. Errors: sandbox.ErrInvalid,
// ErrNotFound, ErrPermission, ErrUnsupported, ErrUnavailable.
func Pull(ctx context.Context, from string, o RegistryOptions) (*Image, error) {
	ref, err := parseSource(from, o.Insecure)
	if err != nil {
		return nil, err
	}
	if o.Keychain == nil {
		o.Keychain = authn.DefaultKeychain
	}
	if o.Platform == (Platform{}) {
		o.Platform = DefaultPlatform
	}
	if o.Retry == 0 {
		o.Retry = time.Second
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = time.Minute
	puller, err := remote.NewPuller(
		remote.WithAuthFromKeychain(o.Keychain), remote.WithTransport(t), remote.WithUserAgent("dsec"),
		remote.WithRetryBackoff(remote.Backoff{Duration: o.Retry, Factor: 2, Jitter: 0.1, Steps: attempts}),
	)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w: %w", ref.Name(), sandbox.ErrUnavailable, err)
	}
	desc, err := puller.Get(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref.Name(), registryError(ctx, err))
	}
	src := &registry{repo: ref.Context(), puller: puller}
	img, err := resolve(ctx, src, desc.Manifest, desc.MediaType, desc.Digest, o.Platform)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref.Name(), err)
	}
	img.remote, img.retry = true, o.Retry
	return img, nil
}

func (r *registry) open(ctx context.Context, b blob) (io.ReadCloser, error) {
	at := r.repo.Digest(b.digest.String())
	if b.manifest {
		desc, err := r.puller.Get(ctx, at)
		if err != nil {
			return nil, registryError(ctx, err)
		}
		return io.NopCloser(bytes.NewReader(desc.Manifest)), nil
	}
	l, err := r.puller.Layer(ctx, at)
	if err != nil {
		return nil, registryError(ctx, err)
	}
	rc, err := l.Compressed()
	if err != nil {
		return nil, registryError(ctx, err)
	}
	return rc, nil
}

// registryError gives what a registry says its kind.
func registryError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var te *transport.Error
	if !errors.As(err, &te) {
		return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	switch te.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w: the registry refuses; does the image exist, and is there a login for it in docker's config.json? %w", sandbox.ErrPermission, err)
	case http.StatusNotFound:
		return fmt.Errorf("%w in the registry: %w", sandbox.ErrNotFound, err)
	case http.StatusTooManyRequests:
		return fmt.Errorf("%w: the registry limits its callers; log in or try later: %w", sandbox.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
}
