package fullvm

import (
	"encoding/json"
	"path/filepath"
	"strconv"

	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/layer/disk"
)

// Sizes, bytes.
const (
	vmmOverhead = 384 << 20 // of QEMU itself: translated code, the screen's memory
	consoleSize = 64 << 10  // of the console that is kept, and of what the firmware says
)

// Names in a machine's directory, where QEMU runs.
const (
	monitorName = "qmp"
	screenName  = "vnc"
	diskName    = "disk.qcow2"
	varsName    = "vars.fd"
	seedName    = "seed.iso"
	pictureName = "picture.png"
	textName    = "text"
	controlName = "control" // ports of the agent; names of their devices as well
	channelName = "channel"
)

// Numbers of descriptors in QEMU: of the image, and of the queue of its interface.
const (
	imageFD = 3
	tapFD   = 4
)

// hardware is what QEMU is started with: a plain value.
type hardware struct {
	kvm      bool
	cpus     int
	memory   int64 // bytes
	firmware disk.Firmware
	ovmf     string // directory
	seed     bool   // there is a seed disk
	mac      string // of its interface; "" = it has none
	tap      bool   // the interface leads somewhere
	incoming bool   // it goes on from a saved state, once that is told
}

// args are QEMU's arguments. The machine does not run before it is told to.
func (m *hardware) args() []string {
	// One thread for all processors when emulated: with one each, QEMU 7.2 can run an instruction while another processor
	// replaces it.
	accel := "tcg,thread=single,tb-size=128"
	if m.kvm {
		accel = "kvm"
	}
	machine := "q35"
	var flash []string
	if m.firmware == disk.UEFI {
		machine += ",pflash0=code,pflash1=vars"
		flash = []string{
			"-blockdev", blockdev(map[string]any{"driver": "raw", "node-name": "code", "read-only": true, "file": file(codePath(m.ovmf), true)}),
			"-blockdev", blockdev(map[string]any{"driver": "raw", "node-name": "vars", "file": file(varsName, false)}),
		}
	}
	own := file(diskName, false)
	own["discard"] = "unmap"
	// What a machine writes does not outlive the node: nothing is to be synced.
	own["cache"] = map[string]any{"direct": false, "no-flush": true}
	a := []string{
		"-M", machine, "-accel", accel, "-cpu", "max", "-smp", strconv.Itoa(m.cpus), "-m", strconv.FormatInt(m.memory>>20, 10) + "M",
		"-nodefaults", "-no-user-config", "-display", "none", "-S",
		// A machine that switches itself off stays, stopped, until it was asked why; it may start itself again.
		"-no-shutdown", "-device", "pvpanic",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-chardev", "ringbuf,id=console,size=" + strconv.Itoa(consoleSize), "-serial", "chardev:console",
		"-chardev", "ringbuf,id=firmware,size=" + strconv.Itoa(consoleSize), "-device", "isa-debugcon,iobase=0x402,chardev=firmware",
		"-chardev", "socket,id=qmp,server=on,wait=off,path=" + monitorName, "-mon", "chardev=qmp,mode=control",
		"-device", "VGA,vgamem_mb=16", "-vnc", "unix:" + screenName + ",share=ignore",
		"-device", "qemu-xhci,id=usb", "-device", "usb-tablet,bus=usb.0",
		"-device", "virtio-rng-pci",
		"-device", "virtio-serial-pci,max_ports=4",
		"-chardev", "socket,id=" + controlName + ",server=on,wait=off,path=" + controlName,
		"-device", "virtserialport,chardev=" + controlName + ",name=" + control.PortName,
		"-chardev", "socket,id=" + channelName + ",server=on,wait=off,path=" + channelName,
		"-device", "virtserialport,chardev=" + channelName + ",name=" + control.Channel,
	}
	a = append(a, flash...)
	if m.seed {
		a = append(a, "-blockdev", blockdev(map[string]any{"driver": "raw", "node-name": "seed", "read-only": true, "file": file(seedName, true)}))
	}
	a = append(a,
		"-add-fd", "set=1,fd="+strconv.Itoa(imageFD),
		"-blockdev", blockdev(map[string]any{"driver": "raw", "node-name": "image", "read-only": true, "file": file("/dev/fdset/1", true)}),
		// The format is said, never guessed; and so is what it lies on.
		"-blockdev", blockdev(map[string]any{"driver": "qcow2", "node-name": "disk", "backing": "image", "discard": "unmap", "file": own}),
		"-device", "virtio-blk-pci,drive=disk,serial=disk,bootindex=1",
	)
	if m.mac != "" { // without a ROM: it starts from its disk; as to announcing, see the microVM's
		net := "hubport,id=nic,hubid=0" // which leads nowhere
		if m.tap {
			net = "tap,id=nic,fd=" + strconv.Itoa(tapFD)
		}
		a = append(a, "-netdev", net, "-device", "virtio-net-pci,netdev=nic,romfile=,guest_announce=off,mac="+m.mac)
	}
	if m.seed { // the last of the disks, so that the first is named as without it
		a = append(a, "-device", "virtio-blk-pci,drive=seed,serial="+seedLabel)
	}
	if m.incoming {
		a = append(a, "-incoming", "defer")
	}
	return a
}

func file(path string, readOnly bool) map[string]any {
	return map[string]any{"driver": "file", "filename": path, "locking": "off", "read-only": readOnly}
}

// blockdev describes a disk in JSON, in which no name needs care.
func blockdev(v map[string]any) string {
	b, _ := json.Marshal(v) // strings and bools
	return string(b)
}

func codePath(ovmf string) string { return filepath.Join(ovmf, "OVMF_CODE_4M.fd") }
func varsPath(ovmf string) string { return filepath.Join(ovmf, "OVMF_VARS_4M.fd") }
