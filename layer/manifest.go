package layer

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/opendsec/dsec/sandbox"
)

// ManifestVersion is the version of the format that this package writes and reads.
const ManifestVersion = 1

// MaxManifestSize bounds what a reader accepts, bytes: enough for a layer of 1 TiB.
const MaxManifestSize = 512 << 20

// ErrDamaged marks stored content that is not what its digest says. It comes with sandbox.ErrUnavailable.
var ErrDamaged = errors.New("damaged")

const digestPrefix = "b3:"

// ParseDigest checks s. Error: sandbox.ErrInvalid.
func ParseDigest(s string) (Digest, error) {
	if h, ok := strings.CutPrefix(s, digestPrefix); ok && isHash(h) {
		return Digest(s), nil
	}
	return "", fmt.Errorf("layer digest %.80q: %w: want %q and 64 lower-case hexadecimal digits", s, sandbox.ErrInvalid, digestPrefix)
}

// Hex returns the digest without its prefix; it is a safe file name if the digest is valid.
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), digestPrefix) }

// DigestOf returns the digest of an encoded manifest.
func DigestOf(manifest []byte) Digest {
	sum := blake3.Sum256(manifest)
	return Digest(digestPrefix + hex.EncodeToString(sum[:]))
}

func isHash(s string) bool {
	if len(s) != 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Encode returns the canonical encoding, JSON without insignificant white space, and its digest. Error:
// sandbox.ErrInvalid.
func (m *Manifest) Encode() ([]byte, Digest, error) {
	if err := m.check(); err != nil {
		return nil, "", err
	}
	c := *m
	for _, b := range []*Blob{&c.Meta, &c.Data} {
		if b.Chunks == nil {
			b.Chunks = []string{}
		}
	}
	for _, l := range []*[]string{&c.Config.Env, &c.Config.Entrypoint, &c.Config.Cmd} {
		if len(*l) == 0 {
			*l = nil
		}
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(&c); err != nil {
		return nil, "", fmt.Errorf("encode layer manifest: %w", err)
	}
	b := bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
	return b, DigestOf(b), nil
}

// DecodeManifest checks that b is the manifest that d names, and decodes it. Errors: ErrDamaged with
// sandbox.ErrUnavailable, sandbox.ErrUnsupported for a version of the future.
func DecodeManifest(b []byte, d Digest) (*Manifest, error) {
	if got := DigestOf(b); got != d {
		return nil, fmt.Errorf("layer %s: %w: %w: its manifest has digest %s", d, sandbox.ErrUnavailable, ErrDamaged, got)
	}
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("layer %s: %w: %w: manifest: %w", d, sandbox.ErrUnavailable, ErrDamaged, err)
	}
	if m.Version != ManifestVersion {
		return nil, fmt.Errorf("layer %s: %w: manifest version %d, this program reads %d", d, sandbox.ErrUnsupported, m.Version, ManifestVersion)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("layer %s: %w: %w: %w", d, sandbox.ErrUnavailable, ErrDamaged, err)
	}
	return &m, nil
}

func (m *Manifest) check() error {
	if m.Version != ManifestVersion {
		return fmt.Errorf("layer manifest: %w: version %d, want %d", sandbox.ErrInvalid, m.Version, ManifestVersion)
	}
	if m.Files < 0 || m.Meta.Size == 0 {
		return fmt.Errorf("layer manifest: %w: no metadata", sandbox.ErrInvalid)
	}
	for name, b := range map[string]*Blob{"meta": &m.Meta, "data": &m.Data} {
		if err := b.check(); err != nil {
			return fmt.Errorf("layer manifest: %w: %s: %w", sandbox.ErrInvalid, name, err)
		}
	}
	return nil
}

func (b *Blob) check() error {
	if b.ChunkSize < 4096 || b.ChunkSize > 1<<30 || b.ChunkSize&(b.ChunkSize-1) != 0 {
		return fmt.Errorf("chunk size %d is not a power of two from 4096 to 2^30", b.ChunkSize)
	}
	if b.Size < 0 || b.Size%4096 != 0 {
		return fmt.Errorf("size %d is not a number of blocks of 4096 bytes", b.Size)
	}
	if want := (b.Size + b.ChunkSize - 1) / b.ChunkSize; int64(len(b.Chunks)) != want {
		return fmt.Errorf("%d chunk digests for %d bytes, want %d", len(b.Chunks), b.Size, want)
	}
	for n, c := range b.Chunks {
		if !isHash(c) {
			return fmt.Errorf("digest of chunk %d is %.80q", n, c)
		}
	}
	return nil
}
