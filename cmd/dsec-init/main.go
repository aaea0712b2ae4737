// dsec-init is PID 1 of a sandbox (see package guest/initd), and the small process that clones sandboxes (see
// package backend/container/spawn).
package main

import (
	"os"

	"github.com/opendsec/dsec/backend/container/spawn"
	"github.com/opendsec/dsec/guest/initd"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "spawner" {
		spawn.Main(3, initd.Environ())
	}
	initd.Main(os.Args[1:])
}
