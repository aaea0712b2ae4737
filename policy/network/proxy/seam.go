package proxy

import (
	"context"
	"net"
)

// Inspector is the seam for features that need to see inside of the encryption: credentials that are added outside of
// the sandbox, ceilings on dates of packages. There is none yet. It will be asked after the name's check and before
// the destination is dialled; the sandbox must trust its authority.
type Inspector interface {
	// Wants says whether connections of a sandbox for a name are handed to Handle instead of being spliced.
	Wants(key, name string) bool
	// Handle serves the connection until it ends. client gives the bytes that were read already once more.
	Handle(ctx context.Context, client net.Conn, f Flow, name string) error
}
