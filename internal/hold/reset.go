package hold

import (
	"errors"
	"syscall"
)

// isReset tells whether an error means that the peer is gone, rather than that it refused.
func isReset(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ENOTCONN)
}
