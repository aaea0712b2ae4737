package e2b

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"strconv"
	"time"
)

// signature is what clients put into the addresses of files: whoever has the address may read or write that path until it
// expires.
func signature(path, operation, user, token, expires string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expires != "" {
		text += ":" + expires
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// checkSignature compares with what the sandbox's token gives. Error: 401.
func (d *Door) checkSignature(r *http.Request, operation string, f *fileRequest) error {
	token, err := d.o.Keys.SandboxToken(r.Context(), purposeEnvd, targetOf(r.Context()).id)
	if err != nil {
		return err
	}
	v := r.URL.Query()
	expires := v.Get("signature_expiration")
	want := signature(f.path, operation, f.user, token, expires)
	if subtle.ConstantTimeCompare([]byte(want), []byte(v.Get("signature"))) != 1 {
		return refused(http.StatusUnauthorized, "the signature is not one for this: %s of the path, as the user, until the time that are asked", operation)
	}
	if expires == "" {
		return nil
	}
	at, err := strconv.ParseInt(expires, 10, 64)
	if err != nil || time.Now().Unix() > at {
		return refused(http.StatusUnauthorized, "the signature has expired")
	}
	return nil
}
