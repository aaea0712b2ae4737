package fullvm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/layer/disk"
	"github.com/opendsec/dsec/sandbox"
)

// seedLabel is the label by which cloud-init knows a disk of its NoCloud source.
const seedLabel = "cidata"

// makeSeed makes the seed disk of a machine. Each machine is a new instance to cloud-init, by its id.
func (d *Driver) makeSeed(id sandbox.ID, c *sandbox.CloudInit, hostname string, n *control.Network) error {
	var meta bytes.Buffer
	fmt.Fprintf(&meta, "instance-id: %s\n", id)
	if hostname != "" {
		fmt.Fprintf(&meta, "local-hostname: %s\n", hostname)
	}
	meta.Write(c.MetaData)
	files := []disk.File{{Name: "meta-data", Content: meta.Bytes()}, {Name: "user-data", Content: c.UserData}} // without user-data it is no seed
	switch {
	case len(c.NetworkConfig) == 0 && n != nil:
		files = append(files, disk.File{Name: "network-config", Content: networkConfig(n)})
	case len(c.NetworkConfig) > 0:
		files = append(files, disk.File{Name: "network-config", Content: c.NetworkConfig})
	}
	f, err := os.OpenFile(filepath.Join(d.dir(id), seedName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(disk.WriteISO(f, seedLabel, files), f.Close())
}
