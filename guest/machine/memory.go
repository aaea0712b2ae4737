package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/machine/control"
)

// memoryDir is where the initial file system has the modules that layers in memory need besides; Memory is the argument that says so.
const (
	memoryDir = "/memory"
	Memory    = "memory"
)

// mountMemory mounts a layer whose files are regions of the machine's memory: programs map the node's own pages.
func mountMemory(dir string, m *control.Memory) error {
	head, err := region(m.Head, m.Image+m.Tail)
	if err != nil {
		return err
	}
	image, data := head, ""
	if m.Body != "" {
		if data, err = region(m.Body, m.BodySize); err != nil {
			return err
		}
	}
	if m.Tail > 0 {
		name := filepath.Base(dir)
		if image, err = join(name+"-image", piece{head, 0, m.Image}); err != nil {
			return err
		}
		var pieces []piece
		if data != "" {
			pieces = append(pieces, piece{data, 0, m.BodySize})
		}
		if data, err = join(name+"-data", append(pieces, piece{head, m.Image, m.Tail})...); err != nil {
			return err
		}
	}
	opts := "dax=always"
	if data != "" {
		opts += ",device=" + data
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(image, dir, "erofs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOATIME, opts); err != nil {
		return invalid{err}
	}
	// Where it cannot the kernel goes on without.
	return wantDAX(dir)
}

func wantDAX(dir string) error {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 3 && f[1] == dir && slices.Contains(strings.Split(f[3], ","), "dax=always") {
			return nil
		}
	}
	return errors.New("the kernel does not map it")
}

// region finds the block device of a region by the address of its PCI device, which no content has a say in. Error: one of another
// size, or that the kernel has taken for something else than plain memory.
func region(address string, size int64) (string, error) {
	var dev string
	err := await("memory at "+address, func() bool {
		links, _ := filepath.Glob("/sys/block/pmem*")
		for _, l := range links {
			to, err := os.Readlink(l)
			if parts := strings.Split(to, "/"); err == nil && slices.Contains(parts, address) && strings.HasPrefix(parts[len(parts)-3], "namespace") {
				dev = filepath.Base(l)
				return true
			}
		}
		return false
	})
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile("/sys/block/" + dev + "/size")
	if err != nil {
		return "", err
	}
	if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err != nil || n*sector != size {
		return "", fmt.Errorf("memory at %s: it has %s sectors, not %d", address, strings.TrimSpace(string(b)), size/sector)
	}
	return "/dev/" + dev, nil
}
