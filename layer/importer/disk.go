package importer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/disk"
	"github.com/opendsec/dsec/layer/oci"
	"github.com/opendsec/dsec/layer/tree"
	"github.com/opendsec/dsec/sandbox"
)

// addDisk keeps a disk's image in a file, for its parts lie in any order, and adds the disk as one file.
func (s *service) addDisk(ctx context.Context, b *tree.Builder, dir string, r io.Reader, firmware disk.Firmware, agent bool, p oci.Progress) (layer.Config, error) {
	plain, err := tree.Decompress(r)
	if err != nil {
		return layer.Config{}, err
	}
	defer plain.Close()
	f, err := os.OpenFile(filepath.Join(dir, "image"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return layer.Config{}, err
	}
	defer f.Close()
	size, err := s.spool(ctx, f, plain)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return layer.Config{}, fmt.Errorf("disk image: %w: what came of it, or its compressed data, is cut off", sandbox.ErrInvalid)
	}
	if err != nil {
		return layer.Config{}, fmt.Errorf("receive disk image: %w", err)
	}
	img, err := disk.Open(f, size)
	if err != nil {
		return layer.Config{}, err
	}
	content := &countReader{r: img.Content(), add: func(n int64) { p("convert", n, img.Size) }}
	if err := addFile(ctx, b, disk.FileName, img.Size, content); err != nil {
		return layer.Config{}, err
	}
	return layer.Config{Disk: &layer.Disk{Size: img.Size, Firmware: string(firmware), Agent: agent}}, nil
}

// addFile adds one file to a tree, by way of an archive of it.
func addFile(ctx context.Context, b *tree.Builder, name string, size int64, content io.Reader) error {
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		tw := tar.NewWriter(w)
		err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o400})
		if err == nil {
			_, err = io.Copy(tw, content)
		}
		if err == nil {
			err = tw.Close()
		}
		w.CloseWithError(err)
		done <- err
	}()
	err := b.AddTar(ctx, r, tree.Plain)
	r.CloseWithError(err)
	// The content's own error says more than what became of the archive.
	if cerr := <-done; cerr != nil && !errors.Is(cerr, io.ErrClosedPipe) && !errors.Is(cerr, err) {
		return cerr
	}
	return err
}

// diskOf is a disk as the API shows it; nil = the layer is none.
func diskOf(c layer.Config) *dsecv1.DiskImage {
	if c.Disk == nil {
		return nil
	}
	return &dsecv1.DiskImage{SizeBytes: c.Disk.Size, Firmware: c.Disk.Firmware, Agent: c.Disk.Agent}
}
