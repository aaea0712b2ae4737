package oci

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/opendsec/dsec/sandbox"
)

// RegistryOptions say how to speak to registries. The zero value is good.
type RegistryOptions struct {
	Insecure bool           // plain http; loopback registries always may
	Keychain authn.Keychain // nil = docker's configuration files
	Platform Platform       // zero = DefaultPlatform
	// Retry is the wait before the second of four attempts; it doubles. 0 = one second.
	Retry time.Duration
	// Patience is for how long a registry may send nothing, all attempts at one thing together. 0 = one minute.
	Patience time.Duration
	// Keep is a directory for what was fetched of imports that did not come to their end: the next one goes on there. It is
	// one process's alone. Empty = nothing is kept.
	Keep string
}

const (
	attempts = 4
	// askTimeout bounds all attempts at anything but a layer, together.
	askTimeout = 2 * time.Minute
	// defaultPatience is long: a registry that fetches from another one answers late.
	defaultPatience = time.Minute
)

// registry is the source of one repository. Each call is one attempt.
type registry struct {
	repo   name.Repository
	client *http.Client
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
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	img, err := pull(ctx, ref, o)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref.Name(), err)
	}
	return img, nil
}

func pull(ctx context.Context, ref name.Reference, o RegistryOptions) (*Image, error) {
	var src *registry
	err := ask(ctx, o, func(ctx context.Context) (err error) {
		src, err = login(ctx, ref.Context(), o.Keychain)
		return err
	})
	if err != nil {
		return nil, err
	}
	var m manifest
	err = ask(ctx, o, func(ctx context.Context) (err error) {
		m, err = src.manifest(ctx, ref.Identifier())
		return err
	})
	if err != nil {
		return nil, err
	}
	img, err := resolve(ctx, retrying{src, o}, m.raw, m.mediaType, m.digest, o.Platform)
	if err != nil {
		return nil, err
	}
	img.source, img.remote, img.retry, img.patience, img.keep = src, true, o.Retry, o.Patience, o.Keep
	return img, nil
}

// login finds out how the registry wants to be spoken to.
func login(ctx context.Context, repo name.Repository, keys authn.Keychain) (*registry, error) {
	auth, err := authn.Resolve(ctx, keys, repo)
	if err != nil {
		return nil, fmt.Errorf("%w: docker's configuration: %w", sandbox.ErrFailedPrecondition, err)
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.DisableCompression = true // blobs are what their digests say
	base.MaxIdleConnsPerHost = parallel
	base.IdleConnTimeout = 10 * time.Second
	rt, err := transport.NewWithContext(ctx, repo.Registry, auth, listening{base}, []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, registryError(ctx, err)
	}
	return &registry{repo: repo, client: &http.Client{Transport: rt}}, nil
}

// get asks for a path of the repository; the body must be closed.
func (r *registry) get(ctx context.Context, path string, accept ...types.MediaType) (*http.Response, error) {
	return r.getFrom(ctx, path, 0, accept...)
}

// getFrom asks for what lies behind an offset; a registry that answers with all of it says so by its status.
func (r *registry) getFrom(ctx context.Context, path string, offset int64, accept ...types.MediaType) (*http.Response, error) {
	url := fmt.Sprintf("%s://%s/v2/%s/%s", r.repo.Scheme(), r.repo.RegistryStr(), r.repo.RepositoryStr(), path)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	for _, a := range accept {
		req.Header.Add("Accept", string(a))
	}
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, registryError(ctx, err)
	}
	if err := transport.CheckError(resp, http.StatusOK, http.StatusPartialContent); err != nil {
		resp.Body.Close()
		return nil, registryError(ctx, err)
	}
	return resp, nil
}

// manifest is what a registry answers to a tag or digest.
type manifest struct {
	raw       []byte
	mediaType types.MediaType
	digest    v1.Hash
}

func (r *registry) manifest(ctx context.Context, identifier string) (manifest, error) {
	resp, err := r.get(ctx, "manifests/"+identifier,
		types.OCIImageIndex, types.DockerManifestList, types.OCIManifestSchema1, types.DockerManifestSchema2)
	if err != nil {
		return manifest{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err != nil {
		return manifest{}, registryError(ctx, err)
	}
	if len(raw) > maxDocument {
		return manifest{}, fmt.Errorf("%w: manifest of more than %d bytes", sandbox.ErrInvalid, maxDocument)
	}
	sum := sha256.Sum256(raw)
	digest := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
	if strings.Contains(identifier, ":") && identifier != digest.String() {
		return manifest{}, fmt.Errorf("%w: the registry's manifest for %s has digest %s", sandbox.ErrInvalid, identifier, digest)
	}
	mediaType, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return manifest{raw, types.MediaType(mediaType), digest}, nil
}

func (r *registry) open(ctx context.Context, b blob) (io.ReadCloser, error) {
	if b.manifest {
		m, err := r.manifest(ctx, b.digest.String())
		if err != nil {
			return nil, err
		}
		return io.NopCloser(bytes.NewReader(m.raw)), nil
	}
	resp, err := r.get(ctx, "blobs/"+b.digest.String())
	if err != nil {
		return nil, err
	}
	return &body{ReadCloser: resp.Body, ctx: ctx}, nil
}

// openFrom opens a blob behind an offset; from is where what it returns begins, which is 0 for registries that cannot.
func (r *registry) openFrom(ctx context.Context, b blob, offset int64) (content io.ReadCloser, from int64, err error) {
	resp, err := r.getFrom(ctx, "blobs/"+b.digest.String(), offset)
	if err != nil {
		return nil, 0, err
	}
	if resp.StatusCode == http.StatusPartialContent {
		if from = offset; !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", offset)) {
			resp.Body.Close()
			return nil, 0, fmt.Errorf("%w: asked for bytes from %d on, the registry answers %.60q", sandbox.ErrInvalid, offset, resp.Header.Get("Content-Range"))
		}
	}
	return &body{ReadCloser: resp.Body, ctx: ctx}, from, nil
}

// body gives errors of the connection their kind.
type body struct {
	io.ReadCloser
	ctx context.Context
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = registryError(b.ctx, err)
	}
	return n, err
}

// retrying makes several attempts at small blobs.
type retrying struct {
	source
	o RegistryOptions
}

func (r retrying) open(ctx context.Context, b blob) (io.ReadCloser, error) {
	var data []byte
	err := ask(ctx, r.o, func(ctx context.Context) (err error) {
		data, err = document(ctx, r.source, b)
		return err
	})
	return io.NopCloser(bytes.NewReader(data)), err
}

// ask makes attempts at something small.
func ask(ctx context.Context, o RegistryOptions, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("%w: the registry did not answer within %v", sandbox.ErrUnavailable, askTimeout))
	defer cancel()
	return retry(ctx, o.Retry, newPulse(o.Patience), f)
}

// retry makes up to four attempts, as long as f says that what it needs is not available, and something is heard.
func retry(ctx context.Context, wait time.Duration, p *pulse, f func(context.Context) error) error {
	for attempt := 1; ; attempt++ {
		err := p.try(ctx, f)
		if err == nil || ctx.Err() != nil || attempt == attempts || !errors.Is(err, sandbox.ErrUnavailable) || p.dead() {
			return err
		}
		timer := time.NewTimer(wait)
		begun := time.Now()
		select {
		case <-timer.C:
			p.skip(time.Since(begun))
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		wait *= 2
	}
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
	case http.StatusBadRequest, http.StatusMethodNotAllowed:
		return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
}
