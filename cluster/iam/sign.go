package iam

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/opendsec/dsec/cluster/engine"
	"github.com/opendsec/dsec/sandbox"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A port token admits to one port of one sandbox until it expires, and to nothing else. It is 8 bytes of expiry
// (Unix seconds, big endian) and the first 20 bytes of HMAC-SHA256 over expiry, sandbox and port, in base32.
const portTagBytes = 20

// PortToken makes a token. Error: ErrUnavailable.
func (s *Store) PortToken(ctx context.Context, id sandbox.ID, port uint16, expires time.Time) (string, error) {
	key, err := s.signingKey(ctx)
	if err != nil {
		return "", err
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(expires.Unix()))
	return base32Lower.EncodeToString(append(b, portTag(key, b, id, port)...)), nil
}

// CheckPortToken returns when a token expires. Errors: ErrUnauthenticated, ErrUnavailable.
func (s *Store) CheckPortToken(ctx context.Context, token string, id sandbox.ID, port uint16) (expires time.Time, err error) {
	key, err := s.signingKey(ctx)
	if err != nil {
		return time.Time{}, err
	}
	b, err := base32Lower.DecodeString(token)
	if err != nil || len(b) != 8+portTagBytes || !hmac.Equal(b[8:], portTag(key, b[:8], id, port)) {
		return time.Time{}, fmt.Errorf("port token: %w: it is not for port %d of sandbox %s; `dsec forward --url` makes one", sandbox.ErrUnauthenticated, port, id)
	}
	expires = time.Unix(int64(binary.BigEndian.Uint64(b)), 0)
	if s.o.Now().After(expires) {
		return time.Time{}, fmt.Errorf("port token: %w: it expired at %s; `dsec forward --url` makes another", sandbox.ErrUnauthenticated, expires.UTC().Format(time.RFC3339))
	}
	return expires, nil
}

func portTag(key, expiry []byte, id sandbox.ID, port uint16) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(expiry)
	m.Write(binary.BigEndian.AppendUint16(nil, port))
	m.Write([]byte(id))
	return m.Sum(nil)[:portTagBytes]
}

// SandboxToken is a token for one purpose (a word) in one sandbox. It is the same each time, and on each API server, and
// does not expire: who asks decides how long it is heeded. Error: ErrUnavailable.
func (s *Store) SandboxToken(ctx context.Context, purpose string, id sandbox.ID) (string, error) {
	key, err := s.signingKey(ctx)
	if err != nil {
		return "", err
	}
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "sandbox token\x00%s\x00%s", purpose, id) // longer than what portTag signs: neither stands for the other
	return base32Lower.EncodeToString(m.Sum(nil)[:portTagBytes]), nil
}

// signingKey returns the key that all API servers share; the first one makes it.
func (s *Store) signingKey(ctx context.Context) ([]byte, error) {
	s.signs.Lock()
	defer s.signs.Unlock()
	if s.sign != nil {
		return s.sign, nil
	}
	ctx, cancel := context.WithTimeout(ctx, engine.CallTimeout)
	defer cancel()
	fresh := make([]byte, 32)
	_, _ = rand.Read(fresh)
	resp, err := s.etcd.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(signingPath), "=", 0)).
		Then(clientv3.OpPut(signingPath, string(fresh))).Else(clientv3.OpGet(signingPath)).Commit()
	if err != nil {
		return nil, unavailable("read signing key", err)
	}
	if resp.Succeeded {
		s.sign = fresh
	} else {
		s.sign = resp.Responses[0].GetResponseRange().Kvs[0].Value
	}
	return s.sign, nil
}
