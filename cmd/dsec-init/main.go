// dsec-init is PID 1 of a sandbox (see package guest/initd), the small process that clones sandboxes (see
// package backend/container/spawn), the first program of virtual
// machines and the agent in full ones (see package guest/machine), and the worker that runs function calls (see package guest/cell).
package main

import (
	"os"

	"github.com/opendsec/dsec/backend/container/spawn"
	"github.com/opendsec/dsec/guest/cell"
	"github.com/opendsec/dsec/guest/initd"
	"github.com/opendsec/dsec/guest/machine"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "spawner" {
		spawn.Main(3, initd.Environ())
	}
	if len(os.Args) > 1 && os.Args[1] == "cells" {
		cell.Main()
	}
	if len(os.Args) > 1 && os.Args[1] == "machine" {
		machine.Main()
	}
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		machine.AgentMain()
	}
	if len(os.Args) > 1 && os.Args[1] == machine.Rehearse {
		machine.RehearseMain(os.Args[2:])
	}
	initd.Main(os.Args[1:])
}
