package guesttest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Memory of a process, in bytes, and its threads and descriptors.
type Memory struct {
	RSS, PSS, Private, Anonymous int64
	Threads, Files               int
}

// Memory measures dsec-init.
func (s *Shell) Memory(t testing.TB) Memory {
	t.Helper()
	proc := "/proc/" + strconv.Itoa(s.PID)
	b, err := os.ReadFile(proc + "/smaps_rollup")
	must(t, err)
	var m Memory
	for _, line := range strings.Split(string(b), "\n") {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kb, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "Rss:":
			m.RSS = kb << 10
		case "Pss:":
			m.PSS = kb << 10
		case "Anonymous:":
			m.Anonymous = kb << 10
		case "Private_Clean:", "Private_Dirty:":
			m.Private += kb << 10
		}
	}
	tasks, err := filepath.Glob(proc + "/task/*")
	must(t, err)
	m.Threads = len(tasks)
	files, err := filepath.Glob(proc + "/fd/*")
	must(t, err)
	m.Files = len(files)
	return m
}
