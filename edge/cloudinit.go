package edge

import (
	"bytes"
	"fmt"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// maxSeed bounds what a seed disk holds, bytes.
const maxSeed = 1 << 20

// checkCloudInit checks what a system is to find on its seed disk. Errors: ErrInvalid, ErrUnsupported; they hold nothing of it.
func checkCloudInit(c *dsecv1.CloudInit, backend sandbox.Backend) (*sandbox.CloudInit, error) {
	if c == nil {
		return nil, nil
	}
	if !backend.Capabilities().CloudInit {
		return nil, fmt.Errorf("cloud_init of a %s sandbox: %w: it is for full VMs", backend.Name(), sandbox.ErrUnsupported)
	}
	if n := len(c.UserData) + len(c.MetaData) + len(c.NetworkConfig); n > maxSeed {
		return nil, invalid("cloud_init of %d bytes in all: want at most %d", n, maxSeed)
	}
	for line := range bytes.Lines(c.MetaData) {
		for _, key := range []string{"instance-id", "local-hostname"} {
			if key, ok := bytes.CutPrefix(line, []byte(key)); ok && bytes.HasPrefix(bytes.TrimLeft(key, " \t"), []byte(":")) {
				return nil, invalid("cloud_init.meta_data: leave instance-id and local-hostname out: they are the sandbox's id and the hostname of its spec")
			}
		}
	}
	if bytes.HasPrefix(bytes.TrimSpace(c.MetaData), []byte("{")) {
		return nil, invalid("cloud_init.meta_data: want lines of YAML, not JSON")
	}
	return &sandbox.CloudInit{UserData: c.UserData, MetaData: c.MetaData, NetworkConfig: c.NetworkConfig}, nil
}
