package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/layer/lazy"
	"github.com/opendsec/dsec/sandbox"
)

// newLayerTrace asks the node's blobd itself: what was read is the node's to know, and its administrator's.
func newLayerTrace(kind dsecv1.LayerKind) *cobra.Command {
	p := newPick(kind)
	var dir string
	cmd := &cobra.Command{Use: p.usage("trace", ""), Short: "Show what this node has read of a version's layers",
		Long: `Trace counts what was read since a layer came to this node, from the store or its cache: of blocks of 4 KiB, and of the
chunks in which they lie. It needs root on a node that reads layers on demand. --json adds the ranges of chunks.`}
	pick := p.take(cmd, 0)
	stateFlag(cmd, &dir)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		kind, ref, _, err := pick(args)
		if err != nil {
			return err
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		defer c.Close()
		found, err := c.Layers.GetLayer(cmd.Context(), &dsecv1.GetLayerRequest{Kind: kind, Reference: ref})
		if err != nil {
			return err
		}
		l := found.GetLayer()
		return printTraces(cmd, dir, append(l.GetBelow(), l.GetDigest()))
	}
	return cmd
}

// printTraces shows what the node whose state is in dir has read of layers.
func printTraces(cmd *cobra.Command, dir string, digests []string) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	d := stateDir(abs)
	var rows [][]string
	for _, digest := range digests {
		t, err := readTrace(cmd.Context(), d, digest)
		if errors.Is(err, sandbox.ErrNotFound) { // nobody here needed it
			t, err = &lazy.Trace{Digest: layer.Digest(digest), Chunks: [][2]int{}}, nil
		}
		var whole *noTraces
		if errors.As(err, &whole) { // it is not about this layer
			return err
		}
		if err != nil {
			return fmt.Errorf("trace of %s: %w", digest, err)
		}
		if wantJSON(cmd) {
			if err := json.NewEncoder(cmd.OutOrStdout()).Encode(t); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{shortDigest(digest), bytesText(t.DataBytes), bytesText(t.ReadBytes), fmt.Sprintf("%.1f%%", 100*t.Share), bytesText(t.ChunkBytes)})
	}
	if wantJSON(cmd) {
		return nil
	}
	return table(cmd.OutOrStdout(), "LAYER DATA READ SHARE IN-CHUNKS", rows)
}

// noTraces says why a node tells of no layer what was read.
type noTraces struct {
	text string
	err  error
}

func (e *noTraces) Error() string { return e.text }
func (e *noTraces) Unwrap() error { return e.err }

// readTrace gets the trace of one layer. Error: sandbox.ErrNotFound when it is not on the node, and so was not read there.
func readTrace(ctx context.Context, d stateDir, digest string) (*lazy.Trace, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	dialer := &net.Dialer{}
	h := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", d.socket("blobd"))
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://blobd/v1/lazy/layers/"+digest+"/trace", nil)
	if err != nil {
		return nil, err
	}
	resp, err := h.Do(req)
	if err != nil {
		return nil, &noTraces{fmt.Sprintf("no node answers in %s: trace asks the node itself, on its machine and as root; --state DIR is what `dsec up` was given (%v)", d, errors.Unwrap(err)), err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return nil, err
	}
	t := &lazy.Trace{}
	switch asJSON := json.Valid(b); {
	case resp.StatusCode == http.StatusOK && asJSON:
		return t, json.Unmarshal(b, t)
	case resp.StatusCode == http.StatusNotFound && asJSON:
		return nil, fmt.Errorf("%w on this node", sandbox.ErrNotFound)
	case resp.StatusCode == http.StatusNotFound:
		return nil, &noTraces{text: "this node mounts layers directly and does not see what is read (dsec up --opt lazy=on)"}
	}
	return nil, fmt.Errorf("blobd answers %s: %.300s", resp.Status, b)
}
