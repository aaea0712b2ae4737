package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/cmd/dsec/tarstream"
	"github.com/opendsec/dsec/sandbox"
	"github.com/spf13/cobra"
)

func newCp() *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use:   "cp [flags] SOURCE... TARGET",
		Short: "Copy files and directories into and out of sandboxes",
		Long: `Cp copies between this machine and a sandbox, either way; ID:PATH names a path in a sandbox, - is stdin or
stdout. Directories are copied whole, but for what stderr
names: sockets never, and from a sandbox neither fifos nor devices nor setuid bits. A target that is a directory (or ends in /) receives the source under its name.`,
		Example: `  dsec cp patch.diff sabcd...:/workspace/
  dsec cp ./src sabcd...:/workspace
  dsec cp sabcd...:/workspace/report.xml .
  dsec cp sabcd...:/etc/hosts -`,
		Args: rangeArgs(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			k := &copier{c: c, user: user, stdin: cmd.InOrStdin(), stdout: cmd.OutOrStdout(), p: newProgress(cmd.ErrOrStderr())}
			defer k.p.stop()
			to, from := parsePlace(args[len(args)-1]), args[:len(args)-1]
			if len(from) > 1 && !strings.HasSuffix(to.path, "/") {
				to.path += "/"
			}
			for _, f := range from {
				if err := k.copy(cmd.Context(), parsePlace(f), to); err != nil {
					return fmt.Errorf("copy %s: %w", f, err)
				}
			}
			k.p.stop()
			if s := k.left.String(); s != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "dsec: "+s)
			}
			if wantJSON(cmd) && to.path != "-" {
				return printJSON(cmd.OutOrStdout(), map[string]any{"copied": from, "to": args[len(args)-1]})
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "user in the sandbox (default: the sandbox's)")
	return cmd
}

// place is a path here (id empty) or in a sandbox.
type place struct{ id, path string }

func parsePlace(s string) place {
	if id, p, ok := strings.Cut(s, ":"); ok {
		if _, err := sandbox.ParseID(id); err == nil {
			return place{id, p}
		}
	}
	return place{path: s}
}

type copier struct {
	c      *client.Client
	user   string
	stdin  io.Reader
	stdout io.Writer
	p      *progress // of what takes long
	left   tarstream.Left
}

func (k *copier) copy(ctx context.Context, from, to place) error {
	switch {
	case from.id == "" && to.id == "":
		return fmt.Errorf("neither side is in a sandbox: write ID:PATH for one")
	case from.id == "":
		return k.up(ctx, from.path, to)
	case to.id == "":
		return k.down(ctx, from, to.path)
	default:
		return k.across(ctx, from, to)
	}
}

// stat describes a path in a sandbox; nil = it does not exist.
func (k *copier) stat(ctx context.Context, p place) (*dsecv1.FileInfo, error) {
	r, err := k.c.Files.StatFile(ctx, &dsecv1.StatFileRequest{SandboxId: p.id, Path: p.path, User: k.user})
	if connect.CodeOf(err) == connect.CodeNotFound {
		// The path, or the sandbox? Only the latter is an error.
		_, serr := k.c.Sandboxes.GetSandbox(ctx, &dsecv1.GetSandboxRequest{SandboxId: p.id})
		return nil, serr
	}
	return r.GetFile(), err
}

// target is where something called name lands: under p when p is a directory.
func (k *copier) target(ctx context.Context, p place, name string) (place, error) {
	info, err := k.stat(ctx, p)
	if err != nil {
		return place{}, err
	}
	if info.GetType() == "directory" || strings.HasSuffix(p.path, "/") {
		p.path = path.Join(p.path, name)
	}
	return p, nil
}

func (k *copier) up(ctx context.Context, from string, to place) error {
	if from == "-" {
		return k.c.WriteFile(ctx, to.id, to.path, client.WriteOptions{User: k.user, Parents: true}, k.p.late(filepath.Base(to.path), k.stdin, -1))
	}
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	abs, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	if to, err = k.target(ctx, to, filepath.Base(abs)); err != nil {
		return err
	}
	if st.IsDir() {
		return k.putTree(ctx, to, func(w io.Writer) error { return tarstream.Write(w, from, tarstream.Options{Left: &k.left}) })
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return k.c.WriteFile(ctx, to.id, to.path, client.WriteOptions{User: k.user, Mode: uint32(st.Mode().Perm()), Parents: true}, k.p.late(filepath.Base(abs), f, st.Size()))
}

// putTree unpacks what write produces beneath a directory that is made when it is missing.
func (k *copier) putTree(ctx context.Context, to place, write func(io.Writer) error) error {
	if _, err := k.c.Files.MakeDirectory(ctx, &dsecv1.MakeDirectoryRequest{SandboxId: to.id, Path: to.path, User: k.user, Parents: true}); err != nil {
		return err
	}
	r, w := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		err := write(w)
		w.CloseWithError(err)
		wrote <- err
	}()
	err := k.c.PutArchive(ctx, to.id, to.path, k.user, k.p.late(path.Base(to.path), r, -1))
	r.CloseWithError(io.ErrClosedPipe)
	if werr := <-wrote; werr != nil && !errors.Is(werr, io.ErrClosedPipe) {
		return werr // the cause, where err is only its effect
	}
	return err
}

func (k *copier) down(ctx context.Context, from place, to string) error {
	info, err := k.stat(ctx, from)
	if err != nil {
		return err
	}
	if info == nil {
		return fmt.Errorf("%s does not exist in sandbox %s", from.path, from.id)
	}
	if to != "-" {
		if st, err := os.Stat(to); strings.HasSuffix(to, "/") || err == nil && st.IsDir() {
			to = filepath.Join(to, path.Base(path.Clean("/"+from.path)))
		}
	}
	if info.GetType() == "directory" {
		r, err := k.c.GetArchive(ctx, from.id, from.path, k.user)
		if err != nil {
			return err
		}
		defer r.Close()
		if to == "-" {
			_, err := io.Copy(k.stdout, r)
			return err
		}
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		return tarstream.Extract(k.p.late(path.Base(from.path), r, -1), to, &k.left)
	}
	r, err := k.c.ReadFile(ctx, from.id, from.path, k.user, 0, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	if to == "-" {
		_, err := io.Copy(k.stdout, r)
		return err
	}
	return writeWhole(to, k.p.late(path.Base(from.path), r, info.GetSize()), fs.FileMode(info.GetMode())&0o777)
}

// writeWhole writes a local file that appears complete or not at all.
func writeWhole(name string, r io.Reader, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".dsec-cp-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Chmod(mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

func (k *copier) across(ctx context.Context, from, to place) error {
	info, err := k.stat(ctx, from)
	if err != nil {
		return err
	}
	if info == nil {
		return fmt.Errorf("%s does not exist in sandbox %s", from.path, from.id)
	}
	if to, err = k.target(ctx, to, path.Base(path.Clean("/"+from.path))); err != nil {
		return err
	}
	if info.GetType() == "directory" {
		r, err := k.c.GetArchive(ctx, from.id, from.path, k.user)
		if err != nil {
			return err
		}
		defer r.Close()
		return k.putTree(ctx, to, func(w io.Writer) error { _, err := io.Copy(w, r); return err })
	}
	r, err := k.c.ReadFile(ctx, from.id, from.path, k.user, 0, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	return k.c.WriteFile(ctx, to.id, to.path, client.WriteOptions{User: k.user, Mode: info.GetMode() & 0o777, Parents: true}, k.p.late(path.Base(from.path), r, info.GetSize()))
}
