package machine

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/machine/control"
)

// renew makes a machine that goes on from another one's memory one of its own: randomness first, for nothing may draw
// what its siblings draw, then the time of day and what its files, below root, say of its name. Its commands stand still meanwhile.
func renew(root string, p, old *control.Prepare) error {
	if err := errors.Join(reseed(p.Seed), setClock(p.Time)); err != nil {
		return err
	}
	etc, err := openEtc(root)
	if err != nil || etc < 0 {
		return err
	}
	defer unix.Close(etc)
	for name, change := range map[string]func([]byte) []byte{
		"hostname": func(b []byte) []byte {
			if string(bytes.TrimSpace(b)) != old.Hostname {
				return b
			}
			return []byte(p.Hostname + "\n")
		},
		"hosts": func(b []byte) []byte {
			lines := bytes.Split(b, []byte("\n"))
			for i, l := range lines {
				if string(l) == hostsName+old.Hostname {
					lines[i] = []byte(hostsName + p.Hostname)
				}
			}
			return bytes.Join(lines, []byte("\n"))
		},
		"resolv.conf": func(b []byte) []byte {
			if string(b) != resolvConf(old.Network) {
				return b
			}
			return []byte(resolvConf(p.Network))
		},
		// One that the image, or a program, has made: it is to tell machines apart.
		"machine-id": func(b []byte) []byte {
			if id, err := hex.DecodeString(string(bytes.TrimSpace(b))); err != nil || len(id) != 16 {
				return b
			}
			var fresh [16]byte
			_, _ = rand.Read(fresh[:]) // never fails
			return []byte(hex.EncodeToString(fresh[:]) + "\n")
		},
	} {
		if err := rewrite(etc, name, change); err != nil {
			return fmt.Errorf("renew /etc/%s: %w", name, err)
		}
	}
	return nil
}

// nameSystem writes a whole system's name where programs look for it, and a restart.
func nameSystem(name string) error {
	if name == "" {
		return nil
	}
	etc, err := openEtc("/")
	if err != nil || etc < 0 {
		return err
	}
	defer unix.Close(etc)
	for file, change := range map[string]func([]byte) []byte{
		"hostname": func([]byte) []byte { return []byte(name + "\n") },
		"hosts": func(b []byte) []byte {
			lines := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
			lines = slices.DeleteFunc(lines, func(l []byte) bool {
				f := bytes.Fields(l)
				return len(f) == 0 || string(f[0]) == strings.TrimSpace(hostsName)
			})
			return append(bytes.Join(append(lines, []byte(hostsName+name)), []byte("\n")), '\n')
		},
	} {
		if fd, err := unix.Openat(etc, file, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644); err == nil {
			unix.Close(fd)
		}
		if err := rewrite(etc, file, change); err != nil {
			return fmt.Errorf("/etc/%s: %w", file, err)
		}
	}
	return nil
}

// maxRewritten bounds the files that renew changes, bytes.
const maxRewritten = 1 << 20

// rewrite changes a regular file in a directory, in place: what has it open, or is mounted on it, sees that. Anything else, or
// a larger file, is the sandbox's own affair.
func rewrite(dir int, name string, change func([]byte) []byte) error {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV})
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > maxRewritten {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxRewritten))
	if err != nil {
		return err
	}
	fresh := change(bytes.Clone(b))
	if bytes.Equal(b, fresh) {
		return nil
	}
	if _, err := f.WriteAt(fresh, 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(fresh)))
}
