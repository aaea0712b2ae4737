package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/internal/testkit"
)

//go:embed clients.py
var clients string

// many lets clients of the real package live at once: each creates a sandbox, runs ten commands, writes, lists and reads
// files, and kills it.
func (b *bench) many(ctx context.Context) error {
	python, err := testkit.PythonPackages(ctx, "e2b-py-"+b.o.version, "e2b=="+b.o.version)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-c", clients, strconv.Itoa(b.o.clients), template)
	cmd.Env = append(os.Environ(), "E2B_API_URL="+b.door.url, "E2B_SANDBOX_URL="+b.door.url, "E2B_API_KEY="+b.door.key)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("clients of e2b %s: %w", b.o.version, err)
	}
	// Seconds of each step of each client that got through it; the errors of the others.
	var got struct {
		Steps    map[string][]float64
		Failures map[string][]string
		Took     float64
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		return fmt.Errorf("what the clients say is no JSON: %w: %.300s", err, out.String())
	}
	for _, step := range []string{"create", "command", "files", "kill", "life"} {
		ms := make([]float64, len(got.Steps[step]))
		for i, s := range got.Steps[step] {
			ms[i] = 1000 * s
		}
		row := measure.FromValues(fmt.Sprintf("sdk_%d_%s", b.o.clients, step), "ms", ms, len(got.Failures[step]))
		if row.Failures > 0 {
			row.Note = fmt.Sprintf("the first: %.200s", got.Failures[step][0])
		}
		b.rows = append(b.rows, row)
	}
	left, err := b.own.Sandboxes.ListSandboxes(ctx, &dsecv1.ListSandboxesRequest{})
	if err != nil {
		return err
	}
	lives := len(got.Steps["life"])
	row := measure.FromValues(fmt.Sprintf("sdk_%d_rate", b.o.clients), "1/s", []float64{float64(lives) / got.Took}, b.o.clients-lives)
	row.Note = fmt.Sprintf("lives of AsyncSandbox in one Python process; %d sandboxes left", len(left.GetSandboxes()))
	b.rows = append(b.rows, row)
	return nil
}
