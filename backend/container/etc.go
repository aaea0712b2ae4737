package container

import (
	"github.com/opendsec/dsec/internal/linux"
)

// Files that every sandbox has in its writable layer from the start. They are ordinary files there: programs
// may edit and replace them, which bind mounts would forbid.
const (
	// No network, no resolver: a name that /etc/hosts lacks fails at once instead of after a timeout.
	noResolver = "# This sandbox has loopback only.\noptions timeout:1 attempts:1\n"
	hostsHead  = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + hostsName
	hostsName  = "127.0.1.1\t"
)

// writeEtc puts them into the upper layer; ids on disk are the sandbox's.
func (sh *shell) writeEtc(hostname, resolvConf string) error {
	dir, err := sh.layer.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := linux.MkdirAt(dir, "etc", 0o755); err != nil {
		return err
	}
	etc, err := linux.OpenDirAt(dir, "etc")
	if err != nil {
		return err
	}
	defer etc.Close()
	for name, content := range map[string]string{
		"hosts": hostsHead + hostname + "\n", "hostname": hostname + "\n", "resolv.conf": resolvConf,
	} {
		if err := linux.WriteAt(etc, name, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// setHostname rewrites the files for a hostname that the caller chose.
func (sh *shell) setHostname(hostname string) error {
	dir, err := sh.layer.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	etc, err := linux.OpenDirAt(dir, "etc")
	if err != nil {
		return err
	}
	defer etc.Close()
	if err := linux.WriteAt(etc, "hosts", []byte(hostsHead+hostname+"\n"), 0o644); err != nil {
		return err
	}
	return linux.WriteAt(etc, "hostname", []byte(hostname+"\n"), 0o644)
}

const (
	modeType = 0o170000
	modeDir  = 0o040000
)

// fitEtc makes the upper layer's /etc look like the directory that it merges with. Where the layers have
// something else there (a symbolic link), it goes, and with it our files.
func (sh *shell) fitEtc(e etcInfo) error {
	if !e.present || e == (etcInfo{true, modeDir | 0o755, 0, 0}) {
		return nil
	}
	dir, err := sh.layer.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	if e.mode&modeType != modeDir {
		return linux.RemoveTreeAt(dir, "etc")
	}
	return linux.SetOwnerAt(dir, "etc", e.mode&0o7777, e.uid, e.gid)
}
