package sandbox

import (
	"crypto/rand"
	"fmt"
)

// ID names a sandbox: 's', four characters of edge id, fifteen random characters, all of [a-z0-9], so that it
// is a DNS label and tells its edge.
type ID string

// EdgeID names an edge: four characters of [a-z0-9].
type EdgeID string

const (
	idAlphabet  = "abcdefghijklmnopqrstuvwxyz234567"
	edgeIDLen   = 4
	idRandomLen = 15
	idLen       = 1 + edgeIDLen + idRandomLen
)

// NewEdgeID draws a random edge id.
func NewEdgeID() EdgeID { return EdgeID(randomString(edgeIDLen)) }

// NewID draws a sandbox id on the given edge.
func NewID(edge EdgeID) ID { return ID("s" + string(edge) + randomString(idRandomLen)) }

// Edge returns the edge that the id encodes.
func (id ID) Edge() EdgeID {
	if len(id) != idLen {
		return ""
	}
	return EdgeID(id[1 : 1+edgeIDLen])
}

// ParseID checks s and returns it as an ID. Error: ErrInvalid.
func ParseID(s string) (ID, error) {
	if len(s) != idLen || s[0] != 's' {
		return "", fmt.Errorf("sandbox id %.40q: %w: want 's' and %d lower-case letters and digits", s, ErrInvalid, idLen-1)
	}
	for i := 1; i < len(s); i++ {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return "", fmt.Errorf("sandbox id %.40q: %w: character %d is not a lower-case letter or digit", s, ErrInvalid, i+1)
		}
	}
	return ID(s), nil
}

func randomString(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: crypto/rand crashes the program instead
	for i := range b {
		b[i] = idAlphabet[int(b[i])%len(idAlphabet)]
	}
	return string(b)
}
