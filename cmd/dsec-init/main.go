// dsec-init is PID 1 of a sandbox. See package guest/initd.
package main

import (
	"os"

	"github.com/opendsec/dsec/guest/initd"
)

func main() { initd.Main(os.Args[1:]) }
