package datapath

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the object and its sources' digest
	"encoding/hex"
)

// The programs are compiled ahead: neither building nor running needs a compiler. clang 14 or newer; the headers are
// the kernel's own (linux-libc-dev).
//
//go:generate sh -ec "clang-14 -O2 -g -Wall -Wextra -Wno-unused-function -Wno-sign-compare -target bpf -mcpu=v3 -I/usr/include/x86_64-linux-gnu -ffile-prefix-map=$PWD=. -c bpf/datapath.c -o datapath.o && llvm-strip-14 -g datapath.o && cat bpf/*.h bpf/*.c | sha256sum | cut -c1-64 >datapath.sum"

//go:embed datapath.o
var object []byte

// sourceSum is the digest of the sources that the object was compiled from.
//
//go:embed datapath.sum
var sourceSum []byte

// version names the object and what it is configured with: what is pinned under another name is of another version.
func version(cfg wireConfig) string {
	h := sha256.New()
	h.Write(object)
	h.Write(encode(cfg))
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func objectReader() *bytes.Reader { return bytes.NewReader(object) }
