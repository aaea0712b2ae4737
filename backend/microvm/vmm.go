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
	"github.com/opendsec/dsec/layer"
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
	handed []int // which of the files that it gets open are in sets
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

// layerFiles are one layer's two files; data may be "". Where it comes to the machine as memory, memory says how.
type layerFiles struct {
	meta, data string
	local      *layer.Local // nil: it is no layer of a store
	memory     *memoryFiles
}

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
func (m *hardware) many() bool { return m.disks() > maxDisks && !mapped(m.layers) }

// args are QEMU's arguments.
func (m *hardware) args() []string {
	// One thread for all processors when emulated: with one each, QEMU 7.2 can run an instruction while another processor
	// replaces it. 64 MiB of translated code is where a first command stops to translate again.
	accel := "tcg,thread=single,tb-size=64"
	if m.kvm {
		accel = "kvm"
	}
	a := append(m.board(accel), "-nodefaults", "-no-user-config", "-display", "none",
		// A machine that ends stays, stopped, until it was asked why.
		"-no-reboot", "-no-shutdown",
		"-sandbox", "on,obsolete=deny,elevateprivileges=allow,spawn=deny,resourcecontrol=deny",
		// Once it has opened what it was started with, it is nobody, in a directory without anything: what it gets later it gets
		// as open files. The filter cannot forbid what becoming nobody takes; nobody gains by it, without privileges to gain.
		"-chroot", m.jail, "-runas", strconv.Itoa(VMMUser)+":"+strconv.Itoa(VMMUser),
		"-chardev", "ringbuf,id=console,size="+strconv.Itoa(consoleSize), "-serial", "chardev:console",
		"-chardev", "socket,id=qmp,server=on,wait=off,path="+monitorName, "-mon", "chardev=qmp,mode=control",
		"-chardev", "socket,id=control,server=on,wait=off,path="+controlName,
		"-chardev", "socket,id=channel,server=on,wait=off,path="+channelName,
		"-device", m.port(),
		"-device", "virtserialport,chardev=control,name="+control.PortName,
		"-device", "virtserialport,chardev=channel,name="+control.Channel,
		"-netdev", nicNet, "-device", m.interfaceDevice(),
		"-kernel", m.boot.kernel, "-initrd", m.boot.initrd, "-append", m.commandLine(),
	)
	for _, k := range m.handed {
		a = append(a, "-add-fd", fmt.Sprintf("set=%d,fd=%d", handedSet+k, handedFD+k))
	}
	a = append(a, m.memoryArgs()...)
	if m.slots > 0 {
		return append(a, m.slotArgs()...)
	}
	if mapped(m.layers) {
		return append(a, m.busArgs()...)
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

// board are what kind of machine it is.
func (m *hardware) board(accel string) []string {
	kind, global, memory := "microvm,rtc=on,memory-backend=ram", []string{"-global", "virtio-mmio.force-legacy=false"}, strconv.FormatInt(m.memory>>20, 10)+"M"
	if mapped(m.layers) { // QEMU's smallest machine takes files as memory and never shows them to its kernel
		kind, global = "q35,memory-backend=ram,sata=off,smbus=off,usb=off,vmport=off,i8042=off,hpet=off", nil
		memory += fmt.Sprintf(",slots=1,maxmem=%dM", (m.memory+mappedSize(m.layers)+memoryUnit)>>20)
	}
	return slices.Concat([]string{"-M", kind}, global, []string{"-accel", accel, "-cpu", "max", "-smp", strconv.Itoa(m.cpus), "-m", memory})
}

// port is what the machine's channels are behind.
func (m *hardware) port() string {
	if mapped(m.layers) {
		return "virtio-serial-pci,max_ports=3,bus=pcie.0,addr=0x1"
	}
	return "virtio-serial-device,max_ports=3"
}

func (m *hardware) interfaceDevice() string {
	if mapped(m.layers) {
		return "virtio-net-pci,romfile=,bus=pcie.0,addr=0x2," + nic
	}
	return "virtio-net-device," + nic
}

// busArgs are the layers and the writable disk of a machine that has layers as its memory.
func (m *hardware) busArgs() (a []string) {
	n := 0
	region := func(id, path string, size int64) {
		file, _ := json.Marshal(map[string]any{"qom-type": "memory-backend-file", "id": id, "mem-path": path, "size": size, "align": int64(memoryUnit),
			"share": true, "readonly": true, "dump": false})
		a = append(a, "-object", string(file), "-device", "virtio-pmem-pci,memdev="+id+","+busPlace(n))
		n++
	}
	disk := func(serial, path string) {
		a = append(a, "-blockdev", blockdev(serial, path, false), "-device", "virtio-blk-pci,drive="+serial+",serial="+serial+","+busPlace(n))
		n++
	}
	for i, l := range m.layers {
		f := l.memory
		if f == nil {
			disk(metaSerial(i), l.meta)
			if l.data != "" {
				disk(dataSerial(i), l.data)
			}
			continue
		}
		region("head"+strconv.Itoa(i), f.head, f.image+f.tail)
		if f.body > 0 {
			region("body"+strconv.Itoa(i), l.data, f.body)
		}
	}
	return append(a, "-blockdev", blockdev(diskSerial, diskName, true), "-device", "virtio-blk-pci,bus=pcie.0,addr=0x3,drive="+diskSerial+",serial="+diskSerial)
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
	open := func(path *string, set bool) {
		if *path == "" || err != nil {
			return
		}
		f, oerr := os.Open(*path)
		if err = oerr; err != nil {
			return
		}
		if set {
			*path = fmt.Sprintf("/dev/fdset/%d", handedSet+len(files))
			m.handed = append(m.handed, len(files))
		} else { // of memory: QEMU opens it as any program does, before it is nobody
			*path = fmt.Sprintf("/proc/self/fd/%d", handedFD+len(files))
		}
		files = append(files, f)
	}
	for k := range m.layers {
		l := &m.layers[k]
		if l.memory == nil {
			open(&l.meta, true)
			open(&l.data, true)
			continue
		}
		f := *l.memory
		open(&f.head, false)
		if f.body > 0 {
			open(&l.data, false)
		}
		l.memory = &f
	}
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
	if mapped(m.layers) {
		s += " " + machine.Memory
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
