package cgroup

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"

	"github.com/opendsec/dsec/sandbox"
)

// Name is what a node's places outside of its state directory are called, by what they are for. The directory is in it
// too: two nodes with one edge id must not sweep each other's.
func Name(what string, edge sandbox.EdgeID, stateDir string) string {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(stateDir)) // never fails
	return fmt.Sprintf("%s-%s-%016x", what, edge, sum.Sum64())
}

// Find opens a node's groups: where the file at path, which an earlier process wrote, says that they are, or else new ones
// of that name below this process's own.
func Find(path, name string) (*Tree, error) {
	var l Layout
	b, err := os.ReadFile(path)
	if err == nil {
		if err = json.Unmarshal(b, &l); err == nil {
			_, err = os.Stat(l.V2) // gone: another boot, or cleaned up
		}
	}
	if err != nil {
		if l, err = Detect(name); err != nil {
			return nil, err
		}
		if b, err = json.Marshal(l); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return nil, err
		}
	}
	return Open(l)
}

// Layout is where the tree lies.
func (t *Tree) Layout() Layout { return Layout{V2: t.v2, V1: t.v1} }
