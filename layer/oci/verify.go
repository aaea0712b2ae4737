package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"github.com/opendsec/dsec/sandbox"
)

// verifier passes content through and fails at its end when it is not what its digest says.
type verifier struct {
	r    io.Reader
	b    blob
	n    int64
	hash hash.Hash
}

func newVerifier(r io.Reader, b blob) *verifier {
	return &verifier{r: r, b: b, hash: sha256.New()}
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.n += int64(n)
	v.hash.Write(p[:n])
	if v.b.size >= 0 && v.n > v.b.size {
		return 0, fmt.Errorf("%w: content of %s is longer than the %d bytes stated", sandbox.ErrInvalid, v.b.digest, v.b.size)
	}
	if err != io.EOF {
		return n, err
	}
	if v.b.size >= 0 && v.n < v.b.size {
		return n, io.ErrUnexpectedEOF
	}
	if v.b.digest.Algorithm != "sha256" {
		return n, fmt.Errorf("%w: digest %s is not of sha256", sandbox.ErrUnsupported, v.b.digest)
	}
	if got := hex.EncodeToString(v.hash.Sum(nil)); got != v.b.digest.Hex {
		return n, fmt.Errorf("%w: content of %s has digest sha256:%s", sandbox.ErrInvalid, v.b.digest, got)
	}
	return n, io.EOF
}
