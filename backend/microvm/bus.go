package microvm

import (
	"fmt"

	"github.com/opendsec/dsec/guest/machine/control"
)

// Places of the devices on the bus of a machine whose layers are its memory: those of layers come after the others, eight of them as
// functions of one device. The machine knows them by that.
const (
	firstLayerDevice = 4
	maxFunctions     = (31 - firstLayerDevice) * 8
)

// functions is how many its layers take.
func (m *hardware) functions() (n int) {
	for _, l := range m.layers {
		if n++; l.second() {
			n++
		}
	}
	return n
}

// second tells whether a layer is two devices.
func (l *layerFiles) second() bool {
	if l.memory != nil {
		return l.memory.body > 0
	}
	return l.data != ""
}

// busPlace is where the nth device of layers is, for QEMU; busAddress the same for the machine.
func busPlace(n int) string {
	return fmt.Sprintf("bus=pcie.0,multifunction=on,addr=0x%x.%d", firstLayerDevice+n/8, n%8)
}

func busAddress(n int) string { return fmt.Sprintf("0000:00:%02x.%d", firstLayerDevice+n/8, n%8) }

// refs are what the machine is told of its layers.
func refs(layers []layerFiles) (out []control.Layer) {
	n := 0
	for k, l := range layers {
		ref := control.Layer{Meta: metaSerial(k)}
		if l.data != "" {
			ref.Data = dataSerial(k)
		}
		if f := l.memory; f != nil {
			ref = control.Layer{Memory: &control.Memory{Head: busAddress(n), Image: f.image, Tail: f.tail}}
			if f.body > 0 {
				ref.Memory.Body, ref.Memory.BodySize = busAddress(n+1), f.body
			}
		}
		if n++; l.second() {
			n++
		}
		out = append(out, ref)
	}
	return out
}
