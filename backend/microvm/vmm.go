package microvm

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/opendsec/dsec/guest/machine"
	"github.com/opendsec/dsec/guest/machine/control"
)

// Sizes, bytes.
const (
	guestOverhead = 96 << 20  // of a machine's memory, for its kernel and dsec-init: commands have all that they asked for
	vmmOverhead   = 192 << 20 // of QEMU itself, translated code included
	consoleSize   = 64 << 10  // of the console that is kept
)

// maxDisks is how many disks fit beside the port and the interface on the machine's 24 transports. Layers of a machine that
// has more are behind one of them, a SCSI controller.
const maxDisks = 22

// maxTargets is how many disks a controller has.
const maxTargets = 256

// Names of a machine's sockets, relative to its directory, where QEMU runs.
const (
	monitorName = "qmp"
	controlName = "control"
	channelName = "channel"
	diskName    = "disk.raw"
	logName     = "log"
)

// VMMUser is the user and group that QEMU runs as: of no account, and of no file.
const VMMUser = 0x7fff_d5ec

// serials of disks.
func metaSerial(i int) string { return "m" + strconv.Itoa(i) }
func dataSerial(i int) string { return "d" + strconv.Itoa(i) }

const diskSerial = "disk"

// hardware is what QEMU is started with: a plain value.
type hardware struct {
	boot   bootImage
	jail   string // an empty directory
	kvm    bool
	tscKHz int // of the host; 0 = unknown
	cpus   int
	memory int64 // bytes
	layers []layerFiles
	handed int   // how many files it gets open
	disk   int64 // bytes of the writable disk, of one that boots with it
	// Of templates and their clones, which get their layers later: slots is for how many layers there are disks, empty ones.
	slots int
	// ram is the file that holds memory, of templates, their clones, and machines that go on from a snapshot. A clone's changes
	// to it stay its own, and its state is told by the monitor.
	ram   string
	clone bool
	// from is the disk that a machine of a snapshot begins with a copy of.
	from string
}

// layerFiles are one layer's two files; data may be "".
type layerFiles struct{ meta, data string }

// disks is how many there are.
func (m *hardware) disks() int {
	n := 1
	for _, l := range m.layers {
		if n++; l.data != "" {
			n++
		}
	}
	return n
}

// many tells whether its layers are behind a controller.
func (m *hardware) many() bool { return m.disks() > maxDisks }

// args are QEMU's arguments.
func (m *hardware) args() []string {
	// One thread for all processors when emulated: with one each, QEMU 7.2 can run an instruction while another processor
	// replaces it. 64 MiB of translated code is where a first command stops to translate again.
	accel := "tcg,thread=single,tb-size=64"
	if m.kvm {
		accel = "kvm"
	}
	a := []string{
		"-M", "microvm,rtc=on,memory-backend=ram", "-global", "virtio-mmio.force-legacy=false", "-accel", accel, "-cpu", "max",
		"-smp", strconv.Itoa(m.cpus), "-m", strconv.FormatInt(m.memory>>20, 10) + "M",
		"-nodefaults", "-no-user-config", "-display", "none",
		// A machine that ends stays, stopped, until it was asked why.
		"-no-reboot", "-no-shutdown",
		"-sandbox", "on,obsolete=deny,elevateprivileges=allow,spawn=deny,resourcecontrol=deny",
		// Once it has opened what it was started with, it is nobody, in a directory without anything: what it gets later it gets
		// as open files. The filter cannot forbid what becoming nobody takes; nobody gains by it, without privileges to gain.
		"-chroot", m.jail, "-runas", strconv.Itoa(VMMUser) + ":" + strconv.Itoa(VMMUser),
		"-chardev", "ringbuf,id=console,size=" + strconv.Itoa(consoleSize), "-serial", "chardev:console",
		"-chardev", "socket,id=qmp,server=on,wait=off,path=" + monitorName, "-mon", "chardev=qmp,mode=control",
		"-chardev", "socket,id=control,server=on,wait=off,path=" + controlName,
		"-chardev", "socket,id=channel,server=on,wait=off,path=" + channelName,
		"-device", "virtio-serial-device,max_ports=3",
		"-device", "virtserialport,chardev=control,name=" + control.PortName,
		"-device", "virtserialport,chardev=channel,name=" + control.Channel,
		"-netdev", nicNet, "-device", nic,
		"-kernel", m.boot.kernel, "-initrd", m.boot.initrd, "-append", m.commandLine(),
	}
	for k := range m.handed {
		a = append(a, "-add-fd", fmt.Sprintf("set=%d,fd=%d", handedSet+k, handedFD+k))
	}
	a = append(a, m.memoryArgs()...)
	if m.slots > 0 {
		return append(a, m.slotArgs()...)
	}
	disk := func(serial, path string, writable bool) {
		a = append(a, "-blockdev", blockdev(serial, path, writable), "-device", "virtio-blk-device,drive="+serial+",serial="+serial)
	}
	layer := disk
	if m.many() {
		a = append(a, "-device", "virtio-scsi-device,id=many")
		layer = func(serial, path string, writable bool) {
			a = append(a, "-blockdev", blockdev(serial, path, writable), "-device", "scsi-hd,bus=many.0,drive="+serial+",serial="+serial)
		}
	}
	for i, l := range m.layers {
		layer(metaSerial(i), l.meta, false)
		if l.data != "" {
			layer(dataSerial(i), l.data, false)
		}
	}
	disk(diskSerial, diskName, true)
	return a
}

// Numbers of the files that a machine gets open from the start: of their sets, beyond those of what it gets later, and of the
// first descriptor.
const (
	handedSet = 1000
	handedFD  = 3
)

// hand opens the files of the layers that the machine boots with: their paths may lead there for this process alone. The
// files are QEMU's, in their order.
func (m *hardware) hand() (files []*os.File, err error) {
	m.layers = slices.Clone(m.layers)
	open := func(path *string) {
		if *path == "" || err != nil {
			return
		}
		f, oerr := os.Open(*path)
		if err = oerr; err != nil {
			return
		}
		*path = fmt.Sprintf("/dev/fdset/%d", handedSet+len(files))
		files = append(files, f)
	}
	for k := range m.layers {
		open(&m.layers[k].meta)
		open(&m.layers[k].data)
	}
	m.handed = len(files)
	return files, err
}

// slotSize is the size of an empty disk, bytes: what is put into its place may be smaller.
const slotSize = 64 << 30

// memoryArgs are the memory: a file's where there is one.
func (m *hardware) memoryArgs() []string {
	ram := map[string]any{"qom-type": "memory-backend-ram", "id": "ram", "size": m.memory}
	if m.ram != "" {
		ram["qom-type"], ram["mem-path"], ram["share"] = "memory-backend-file", m.ram, !m.clone
	}
	b, _ := json.Marshal(ram) // strings, numbers and bools
	a := []string{"-object", string(b)}
	if m.clone {
		a = append(a, "-incoming", "defer")
	}
	return a
}

// slotArgs are the empty disks of templates and clones.
func (m *hardware) slotArgs() (a []string) {
	slot := func(serial string, writable bool) {
		empty, _ := json.Marshal(map[string]any{"driver": "null-co", "node-name": serial, "size": int64(slotSize), "read-zeroes": true, "read-only": !writable})
		a = append(a, "-blockdev", string(empty), "-device", "virtio-blk-device,id="+serial+",drive="+serial+",serial="+serial)
	}
	for i := range m.slots {
		slot(metaSerial(i), false)
		slot(dataSerial(i), false)
	}
	slot(diskSerial, true)
	return a
}

// blockdev describes a file as a disk, in JSON, in which no name needs care.
func blockdev(name, path string, writable bool) string {
	b, _ := json.Marshal(blockNode(name, path, writable)) // strings and bools
	return string(b)
}

// blockNode is what a file is as a disk.
func blockNode(name, path string, writable bool) map[string]any {
	file := map[string]any{"driver": "file", "filename": path, "locking": "off"}
	v := map[string]any{"driver": "raw", "node-name": name, "read-only": !writable, "file": file}
	if writable {
		// What a machine writes does not outlive the node: nothing is to be synced.
		file["cache"] = map[string]any{"direct": false, "no-flush": true}
		v["cache"] = file["cache"]
		file["discard"], v["discard"] = "unmap", "unmap"
	} else {
		file["read-only"] = true
	}
	return v
}

func (m *hardware) commandLine() string {
	s := "console=ttyS0 reboot=t panic=-1 quiet loglevel=4 tsc=reliable no_timer_check 8250.nr_uarts=1 random.trust_cpu=on rdinit=/init"
	if !m.kvm {
		// An emulator translates a program anew for each address that it is loaded at, which is half of what a command
		// costs; and there is no processor whose faults were to be worked around.
		s += " norandmaps mitigations=off"
	}
	if m.tscKHz > 0 && !m.kvm {
		// Else the kernel looks for a timer to calibrate by that such a machine has not.
		s += " tsc_early_khz=" + strconv.Itoa(m.tscKHz)
	}
	s += " -- machine"
	if m.slots == 0 && m.many() {
		s += " " + machine.Many
	}
	return s
}

// tscKHz reads the speed of the host's clock; 0 = unknown.
func tscKHz() int {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "cpu MHz" {
			mhz, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			if err == nil && mhz > 0 && mhz < 1e5 {
				return int(mhz * 1000)
			}
		}
	}
	return 0
}

// String tells its size, for logs.
func (m *hardware) String() string {
	return fmt.Sprintf("%d processors, %d MiB, %d disks, kernel %s", m.cpus, m.memory>>20, m.disks(), m.boot.version)
}
