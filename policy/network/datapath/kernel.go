package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// kernel is what lies in the kernel: maps and programs, pinned in a directory that is named by their version.
type kernel struct {
	Ports     *ebpf.Map `ebpf:"ports"`
	Spaces    *ebpf.Map `ebpf:"spaces"`
	Slots     *ebpf.Map `ebpf:"slots"`
	States    *ebpf.Map `ebpf:"states"`
	Current   *ebpf.Map `ebpf:"current"`
	Records   *ebpf.Map `ebpf:"records"`
	Lists     *ebpf.Map `ebpf:"lists"`
	Policies  *ebpf.Map `ebpf:"policies"`
	Forbidden *ebpf.Map `ebpf:"forbidden"`
	Learned   *ebpf.Map `ebpf:"learned"`
	Flows     *ebpf.Map `ebpf:"flows"`
	Ring      *ebpf.Map `ebpf:"events"`

	programs map[string]*ebpf.Program
	trie     *ebpf.MapSpec // of a policy

	current, states *linux.Words
}

func (k *kernel) maps() map[string]**ebpf.Map {
	return map[string]**ebpf.Map{"ports": &k.Ports, "spaces": &k.Spaces, "slots": &k.Slots, "states": &k.States, "current": &k.Current,
		"records": &k.Records, "lists": &k.Lists, "policies": &k.Policies, "forbidden": &k.Forbidden, "learned": &k.Learned,
		"flows": &k.Flows, "events": &k.Ring}
}

var programNames = []string{"from_sandbox", "to_sandbox", "from_uplink", "to_uplink", "connect4", "connect6", "sendmsg4", "sendmsg6"}

// groupPrograms are those of the control group, with their places.
var groupPrograms = []struct {
	name string
	at   ebpf.AttachType
}{
	{"connect4", ebpf.AttachCGroupInet4Connect}, {"connect6", ebpf.AttachCGroupInet6Connect},
	{"sendmsg4", ebpf.AttachCGroupUDP4Sendmsg}, {"sendmsg6", ebpf.AttachCGroupUDP6Sendmsg},
}

func encode(v any) []byte {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.NativeEndian, v); err != nil {
		panic(err) // a layout of ours is not of fixed size
	}
	return b.Bytes()
}

// openKernel takes over what is pinned, or loads it. adopted: it was there.
func openKernel(dir string, cfg wireConfig) (k *kernel, adopted bool, err error) {
	if err := linux.MountBPF(dir); err != nil {
		return nil, false, err
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(objectReader())
	if err != nil {
		return nil, false, fmt.Errorf("read the programs: %w", err)
	}
	if err := spec.Variables["config"].Set(encode(cfg)); err != nil {
		return nil, false, fmt.Errorf("configure the programs: %w", err)
	}
	here := filepath.Join(dir, version(cfg))
	k = &kernel{programs: map[string]*ebpf.Program{}, trie: spec.Maps["policies"].InnerMap.Copy()}
	if err = k.takeOver(here); errors.Is(err, os.ErrNotExist) {
		k.close()
		err = k.load(here, spec)
	} else if err == nil {
		adopted = true
	}
	if err == nil {
		k.current, err = linux.MapWords(k.Current.FD(), int(k.Current.MaxEntries()))
	}
	if err == nil {
		k.states, err = linux.MapWords(k.States.FD(), int(k.States.MaxEntries())*stateWords)
	}
	if err != nil {
		k.close()
		return nil, false, err
	}
	return k, adopted, nil
}

func (k *kernel) takeOver(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "complete")); err != nil {
		return err
	}
	for name, m := range k.maps() {
		var err error
		if *m, err = ebpf.LoadPinnedMap(filepath.Join(dir, name), nil); err != nil {
			return fmt.Errorf("take over map %s: %w", name, err)
		}
	}
	for _, name := range programNames {
		p, err := ebpf.LoadPinnedProgram(filepath.Join(dir, "program_"+name), nil)
		if err != nil {
			return fmt.Errorf("take over program %s: %w", name, err)
		}
		k.programs[name] = p
	}
	return nil
}

// load loads and pins everything. The name "complete", a directory, is made last: without it the next Open begins anew.
func (k *kernel) load(dir string, spec *ebpf.CollectionSpec) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		var v *ebpf.VerifierError
		if errors.As(err, &v) {
			return fmt.Errorf("the kernel refuses the network programs: %w: %w", err, sandbox.ErrUnsupported)
		}
		return fmt.Errorf("load the network programs: %w: %w", err, sandbox.ErrUnsupported)
	}
	defer coll.Close()
	for name, m := range k.maps() {
		*m = coll.DetachMap(name)
		if err := (*m).Pin(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	for _, name := range programNames {
		p := coll.DetachProgram(name)
		k.programs[name] = p
		if err := p.Pin(filepath.Join(dir, "program_"+name)); err != nil {
			return fmt.Errorf("pin program %s: %w", name, err)
		}
	}
	return os.Mkdir(filepath.Join(dir, "complete"), 0o700)
}

func (k *kernel) close() {
	for _, w := range []*linux.Words{k.current, k.states} {
		if w != nil {
			_ = w.Close()
		}
	}
	for _, m := range k.maps() {
		if *m != nil {
			_ = (*m).Close()
			*m = nil
		}
	}
	for name, p := range k.programs {
		_ = p.Close()
		delete(k.programs, name)
	}
}

// hooks are the requests that put programs on an interface of the router. They belong to the interface and go with it; no
// descriptor keeps them. Programs of another version are replaced without a gap. (The newer tcx wants a grace period of the
// kernel for each program, under the lock of all network configuration: 20 ms a sandbox. This wants none.)
func (k *kernel) hooks(index int, in, out string) []linux.Request {
	return []linux.Request{
		linux.AddHooks(index),
		linux.HookProgram(index, false, k.programs[in].FD(), in),
		linux.HookProgram(index, true, k.programs[out].FD(), out),
	}
}

// attachGroup puts programs on a control group; they go with it.
func (k *kernel) attachGroup(group *os.File) error {
	const multi = 2 // BPF_F_ALLOW_MULTI: a sandbox's own managers may add theirs
	for _, g := range groupPrograms {
		err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(group.Fd()), Program: k.programs[g.name], Attach: g.at, Flags: multi})
		if err != nil {
			return fmt.Errorf("attach %s to control group %s: %w", g.name, group.Name(), err)
		}
	}
	return nil
}
