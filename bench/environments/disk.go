package main

import (
	"io/fs"
	"syscall"
)

// diskBytes is what a file takes on disk.
func diskBytes(st fs.FileInfo) int64 {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return s.Blocks * 512
	}
	return st.Size()
}
