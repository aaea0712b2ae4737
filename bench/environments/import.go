package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
)

func init() { parts = append(parts, part{"import", imports}) }

// importRuns bounds how often each is run: one run writes the whole base.
const importRuns = 5

// imports measures how many MB of a Debian tar become a layer in a second (over the API, verified, synced and published),
// beside unpacking it (tar, umoci) and making an image of what was unpacked (mkfs.erofs); those are synced too.
func imports(ctx context.Context, b *bench) error {
	archive, err := testkit.DebianBase(ctx)
	if err != nil {
		return err
	}
	st, err := os.Stat(archive)
	if err != nil {
		return err
	}
	runs := min(b.n, importRuns)
	rate := func(name, note string, f func(ctx context.Context, i int) error, to ...string) error {
		times, failures, err := measure.Times(ctx, runs, 1, f)
		if len(times) == 0 {
			return fmt.Errorf("%s: %w", name, err)
		}
		v := make([]float64, len(times))
		for n, d := range times {
			v[n] = float64(st.Size()) / 1e6 / d.Seconds()
		}
		r := measure.FromValues(name, "MB/s", v, failures)
		r.Note = note
		b.add(r, to...)
		return nil
	}
	dir := filepath.Join(b.work, "import")
	defer os.RemoveAll(dir)
	fresh := func(i int) (string, error) {
		d := filepath.Join(dir, fmt.Sprint(i))
		return d, os.MkdirAll(d, 0o700)
	}
	err = rate("import_tar_x", "tar -x and sync", func(ctx context.Context, i int) error {
		d, err := fresh(i)
		if err != nil {
			return err
		}
		return command(ctx, "sh", "-c", `tar --numeric-owner -xf "$0" -C "$1" && sync -f "$1"`, archive, d)
	})
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("mkfs.erofs"); err == nil {
		err = rate("import_mkfs_erofs", "of the unpacked tree, uncompressed, and sync", func(ctx context.Context, i int) error {
			image := filepath.Join(dir, fmt.Sprintf("%d.erofs", i))
			defer os.Remove(image)
			return command(ctx, "sh", "-c", `mkfs.erofs --quiet "$0" "$1" >/dev/null && sync -f "$0"`, image, filepath.Join(dir, "0"))
		})
		if err != nil {
			return err
		}
	}
	if _, err := exec.LookPath("umoci"); err == nil {
		layout := filepath.Join(dir, "oci")
		err := command(ctx, "sh", "-c", `umoci init --layout "$0" && umoci new --image "$0:x" && umoci raw add-layer --image "$0:x" "$1"`, layout, archive)
		if err == nil {
			err = rate("import_umoci", "umoci unpack of the tar as a gzip layer, and sync", func(ctx context.Context, i int) error {
				d := filepath.Join(dir, fmt.Sprintf("bundle%d", i))
				defer os.RemoveAll(d)
				return command(ctx, "sh", "-c", `umoci unpack --image "$0:x" "$1" >/dev/null && sync -f "$1"`, layout, d)
			})
		}
		if err != nil {
			return err
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return b.withNode(ctx, func(n *testkit.Node) error {
		return rate("import", "an upload to a published layer; each run makes another one", func(ctx context.Context, i int) error {
			f, err := os.Open(archive)
			if err != nil {
				return err
			}
			defer f.Close()
			start := time.Now()
			r, err := n.Client.UploadLayer(ctx, client.Upload{Kind: "workspace", Name: "import", Prefix: fmt.Sprintf("/run-%d-%d", i, start.UnixNano())}, io.Reader(f), nil)
			if err == nil && r.GetReused() {
				err = fmt.Errorf("nothing was written")
			}
			return err
		}, "import_tar_x", "import_mkfs_erofs", "import_umoci")
	})
}

// command runs a program; its error says what it said.
func command(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%.500s", name, err, out)
	}
	return nil
}
