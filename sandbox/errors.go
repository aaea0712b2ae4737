package sandbox

import "errors"

// Sentinel kinds of error; each maps to one wire code (see cluster/apiserver and edge). Wrap them with what
// was being done and to what, and with what the caller can do.
var (
	ErrInvalid            = errors.New("invalid argument")
	ErrNotFound           = errors.New("not found")
	ErrAlreadyExists      = errors.New("already exists")
	ErrConflict           = errors.New("conflict")
	ErrFailedPrecondition = errors.New("failed precondition") // ended, wrong state
	ErrExhausted          = errors.New("resource exhausted")
	ErrPermission         = errors.New("permission denied")
	ErrUnauthenticated    = errors.New("unauthenticated")
	ErrUnavailable        = errors.New("unavailable")
	ErrUnsupported        = errors.New("unsupported")
	ErrDeadline           = errors.New("deadline exceeded")
)
