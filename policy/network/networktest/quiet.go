package networktest

import (
	"io"
	"log"
)

// quiet takes what servers log of clients that hang up: tests do that on purpose.
var quiet = log.New(io.Discard, "", 0)
