package microvm

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// Layers come to a machine as disks, or as its memory (virtio-pmem, mounted with DAX): what its programs map are then the pages
// that the node's kernel has of the layer's files, once for all machines. A region of such memory is a file, from its beginning, in
// multiples of 2 MiB; but layers' files have the size that their digests cover. So of each layer
//
//	body  is its data's file as it lies in the store, but for what is beyond the last multiple
//	head  is a file of the node: the image, and behind it the data's end, each padded
//
// and the machine joins the data again (package guest/machine). A head is made once for a layer, and is less than 2 MiB larger
// than the layer's metadata.

// How layers come to machines, by Config.Layers.
const (
	LayersDisk   = "blk"  // as disks
	LayersMemory = "pmem" // as memory, and what cannot is refused
	LayersAuto   = "auto" // as memory where that can be, else as disks
)

// memoryUnit is what regions are multiples of, bytes.
const memoryUnit = 2 << 20

// pageCost is the share of a region that its machine's kernel takes of other memory to describe it: 64 bytes for each 4096.
const pageCost = 64

// maxMapped bounds the data of one layer that is handed as memory, bytes.
const maxMapped = 16 << 30

// memoryFiles is a layer as memory; its body is the beginning of its data's file. Sizes in bytes.
type memoryFiles struct {
	head              string
	image, tail, body int64
}

// size is that of its regions.
func (f *memoryFiles) size() int64 { return f.image + f.tail + f.body }

func padded(n int64) int64 { return (n + memoryUnit - 1) / memoryUnit * memoryUnit }

// mapped tells whether some of a machine's layers are its memory.
func mapped(layers []layerFiles) bool {
	return slices.ContainsFunc(layers, func(l layerFiles) bool { return l.memory != nil })
}

// mappedSize is how much memory they are, bytes.
func mappedSize(layers []layerFiles) (n int64) {
	for _, l := range layers {
		if l.memory != nil {
			n += l.memory.size()
		}
	}
	return n
}

// mappedFlags says of each layer whether it is memory; nil for none.
func mappedFlags(layers []layerFiles) (out []bool) {
	if !mapped(layers) {
		return nil
	}
	for _, l := range layers {
		out = append(out, l.memory != nil)
	}
	return out
}

// mappingCost is what a machine has to have of memory besides for layers that are its memory, bytes.
func mappingCost(layers []layerFiles) int64 {
	return (mappedSize(layers)/pageCost + 1<<20 - 1) &^ (1<<20 - 1)
}

// strangers begin what a kernel takes for the description of something else than plain memory, by which contents would have a say
// in what a region is: at the beginning, or one page further.
var strangers = []string{"NVDIMM_", "BTT_ARENA"}

// unmappable tells why a layer cannot be a machine's memory; "" = it can.
func unmappable(l *layer.Local) (string, error) {
	if l.Readahead > 0 {
		return "its data is read on demand", nil
	}
	if l.Manifest.Data.Size > maxMapped {
		return fmt.Sprintf("it has more than %d GiB", maxMapped>>30), nil
	}
	for _, path := range []string{l.MetaPath, l.DataPath} {
		if path == "" {
			continue
		}
		st, err := os.Stat(path)
		if err != nil {
			return "", err
		}
		if !st.Mode().IsRegular() {
			return "it is no plain file on this node", nil
		}
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		begin := make([]byte, 4096+16)
		n, err := f.ReadAt(begin, 0)
		f.Close()
		if err != nil && err != io.EOF {
			return "", err
		}
		for _, s := range strangers {
			if strings.HasPrefix(string(begin[:n]), s) || n > 4096 && strings.HasPrefix(string(begin[4096:n]), s) {
				return "a kernel would take it for something else than memory", nil
			}
		}
	}
	return "", nil
}

// LacksForMemory tells what a kernel (without ND_CLAIM, nd_pmem takes no region) has not that layers in memory take; "" = nothing.
func LacksForMemory(r *debkernel.Release) string {
	b, err := os.ReadFile(filepath.Join(r.Dir, "boot", "config-"+r.Version))
	if err != nil {
		return "its configuration"
	}
	for _, o := range []string{"CONFIG_ZONE_DEVICE", "CONFIG_FS_DAX", "CONFIG_LIBNVDIMM", "CONFIG_ND_CLAIM", "CONFIG_VIRTIO_PMEM", "CONFIG_BLK_DEV_PMEM", "CONFIG_BLK_DEV_DM", "CONFIG_VIRTIO_PCI"} {
		if !strings.Contains(string(b), "\n"+o+"=y\n") && !strings.Contains(string(b), "\n"+o+"=m\n") {
			return o
		}
	}
	return ""
}

// mapLayers makes layers the machine's memory, as the node is to do it, and returns how they come to it, in words. Error:
// sandbox.ErrUnsupported where that is to be and cannot.
func (d *Driver) mapLayers(ctx context.Context, m *hardware) (string, error) {
	if d.cfg.LayersAs == LayersDisk {
		return "", nil
	}
	var left []string
	n := 0
	if lack := m.boot.lacks; lack != "" {
		left = append(left, fmt.Sprintf("kernel %s lacks %s", m.boot.version, lack))
	}
	for i := range m.layers {
		if m.boot.lacks != "" {
			break
		}
		why, err := unmappable(m.layers[i].local)
		if err == nil && why == "" {
			n++
			err = d.mapLayer(ctx, &m.layers[i])
		}
		if err != nil {
			return "", err
		}
		if why != "" {
			left = append(left, fmt.Sprintf("layer %s: %s", m.layers[i].local.Digest, why))
		}
	}
	if len(left) == 0 && m.functions() > maxFunctions {
		left = append(left, fmt.Sprintf("%d layers are more than fit", len(m.layers)))
		n = 0
	}
	if len(left) > 0 && d.cfg.LayersAs == LayersMemory {
		return "", fmt.Errorf("create machine: %w: its layers are to be its memory (--opt microvm-layers=%s), and cannot: %s: use %s to have those as disks",
			sandbox.ErrUnsupported, LayersMemory, strings.Join(left, "; "), LayersAuto)
	}
	if n == 0 || m.functions() > maxFunctions {
		for i := range m.layers {
			m.layers[i].memory = nil
		}
		return strings.Join(append([]string{LayersDisk}, left...), "; "), nil
	}
	m.memory += mappingCost(m.layers)
	return strings.Join(append([]string{LayersMemory}, left...), "; "), nil
}

// mapAgain makes the same layers memory as in a machine that was saved. Error: sandbox.ErrFailedPrecondition where one
// cannot be any more.
func (d *Driver) mapAgain(ctx context.Context, layers []layerFiles, flags []bool) error {
	if flags == nil {
		return nil
	}
	if len(flags) != len(layers) {
		return fmt.Errorf("%w: it had %d layers, and has %d", sandbox.ErrFailedPrecondition, len(flags), len(layers))
	}
	for i, is := range flags {
		if !is {
			continue
		}
		why, err := unmappable(layers[i].local)
		if err == nil && why != "" {
			err = fmt.Errorf("%w: layer %s was its memory, and cannot be any more: %s", sandbox.ErrFailedPrecondition, layers[i].local.Digest, why)
		}
		if err == nil {
			err = d.mapLayer(ctx, &layers[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mapLayer makes a layer memory.
func (d *Driver) mapLayer(ctx context.Context, l *layerFiles) error {
	meta, data := l.local.Manifest.Meta.Size, l.local.Manifest.Data.Size
	f := &memoryFiles{image: padded(meta), body: data / memoryUnit * memoryUnit}
	f.tail = padded(data - f.body)
	var err error
	if f.head, err = d.head(ctx, l.local, f); err != nil {
		return fmt.Errorf("layer %s as memory: %w", l.local.Digest, err)
	}
	l.memory = f
	return nil
}
