package iam

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// Format is the shape of a key.
type Format string

// The formats.
const (
	FormatDSec Format = "dsec" // dsec_<8 of a-z2-7>_<32 of a-z2-7>
	FormatE2B  Format = "e2b"  // e2b_<50 hexadecimal digits>, the first 10 are the id
)

// Key is what is kept of a key.
type Key struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Format    Format    `json:"format"`
	Hash      string    `json:"hash"` // hexadecimal SHA-256 of the whole key
	CreatedAt time.Time `json:"createdAt"`
	RevokedAt time.Time `json:"revokedAt,omitzero"`
	Project   string    `json:"project,omitempty"` // empty = the default one
}

const (
	idBytes     = 5  // 8 base32 characters, 10 hexadecimal digits
	secretBytes = 20 // 32 base32 characters, 40 hexadecimal digits
)

var (
	base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	dsecShape   = regexp.MustCompile(`^dsec_([a-z2-7]{8})_[a-z2-7]{32}$`)
	e2bShape    = regexp.MustCompile(`^e2b_([0-9a-f]{10})[0-9a-f]{40}$`)
	anyShape    = regexp.MustCompile(`dsec_[a-z2-7]{8}_[a-z2-7]{32}|e2b_[0-9a-f]{50}`)
)

// newKey draws a key; secret is the whole of it, to be shown once.
func newKey(name string, format Format, now time.Time) (k Key, secret string, err error) {
	b := make([]byte, idBytes+secretBytes)
	_, _ = rand.Read(b) // never fails: crypto/rand crashes the program instead
	k = Key{Name: name, Format: format, CreatedAt: now.UTC().Truncate(time.Millisecond)}
	switch format {
	case FormatDSec:
		k.ID = base32Lower.EncodeToString(b[:idBytes])
		secret = "dsec_" + k.ID + "_" + base32Lower.EncodeToString(b[idBytes:])
	case FormatE2B:
		k.ID = hex.EncodeToString(b[:idBytes])
		secret = "e2b_" + k.ID + hex.EncodeToString(b[idBytes:])
	default:
		return Key{}, "", fmt.Errorf("key format %.20q: %w: want %q or %q", format, sandbox.ErrInvalid, FormatDSec, FormatE2B)
	}
	k.Hash = hash(secret)
	return k, secret, nil
}

func hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// matches compares in constant time.
func (k Key) matches(secret string) bool {
	return subtle.ConstantTimeCompare([]byte(hash(secret)), []byte(k.Hash)) == 1
}

// idOf returns the public id in a presented key, or "" when it has neither shape.
func idOf(secret string) string {
	shape := dsecShape
	if strings.HasPrefix(secret, "e2b_") {
		shape = e2bShape
	}
	if m := shape.FindStringSubmatch(secret); m != nil {
		return m[1]
	}
	return ""
}

// ContainsKey tells whether s has something of the shape of a key in it, so that proxies can keep keys from
// where they do not belong.
func ContainsKey(s string) bool {
	// Almost no header has either prefix; the regular expression is for those that do.
	return (strings.Contains(s, "dsec_") || strings.Contains(s, "e2b_")) && anyShape.MatchString(s)
}
