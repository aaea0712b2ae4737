package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/cmd/dsec/gitexport"
	"github.com/opendsec/dsec/cmd/dsec/tarstream"
	"github.com/spf13/cobra"
)

// What an interrupted import leaves behind.
const (
	remoteLeft = "nothing was published; what was fetched is kept for a day, and the same command goes on from there"
	localLeft  = "nothing was published"
)

// importRemote has the server pull from a registry.
func importRemote(cmd *cobra.Command, c *client.Client, req *dsecv1.ImportLayerRequest) error {
	p := newProgress(cmd.ErrOrStderr())
	defer p.stop()
	s, err := c.Layers.ImportLayer(cmd.Context(), req)
	if err != nil {
		return interrupted(cmd.Context(), err, remoteLeft)
	}
	defer s.Close()
	for s.Receive() {
		msg := s.Msg()
		if msg.GetLayer() != nil {
			p.stop()
			return printImported(cmd, msg)
		}
		p.show(msg.GetProgress())
	}
	if err := s.Err(); err != nil {
		return interrupted(cmd.Context(), c.Explain(err), remoteLeft)
	}
	return fmt.Errorf("import ended without a layer: %w", io.ErrUnexpectedEOF)
}

// importLocal streams a directory, a file or stdin ("-") up.
func importLocal(cmd *cobra.Command, c *client.Client, up client.Upload, source string, keepOwner bool) error {
	p := newProgress(cmd.ErrOrStderr())
	defer p.stop()
	body, size, err := openSource(source, keepOwner)
	if err != nil {
		return err
	}
	defer body.Close()
	if source != "-" {
		if abs, err := filepath.Abs(source); err == nil {
			up.Source = abs
		}
	}
	resp, err := upload(cmd, c, up, p.reader(body, size), p.show)
	if err != nil {
		return interrupted(cmd.Context(), err, localLeft)
	}
	p.stop()
	return printImported(cmd, resp)
}

// upload sends a layer. It does not outlast an interrupt: reading standard input cannot be cancelled.
func upload(cmd *cobra.Command, c *client.Client, up client.Upload, body io.Reader, progress func(*dsecv1.ImportProgress)) (*dsecv1.ImportLayerResponse, error) {
	type result struct {
		resp *dsecv1.ImportLayerResponse
		err  error
	}
	done := make(chan result, 1)
	go func() { // ends with the program at the latest
		resp, err := c.UploadLayer(cmd.Context(), up, body, progress)
		done <- result{resp, err}
	}()
	select {
	case r := <-done:
		return r.resp, r.err
	case <-cmd.Context().Done():
		return nil, cmd.Context().Err()
	}
}

// importGit streams a commit of a local repository up, as files and a repository of that one commit.
func importGit(cmd *cobra.Command, c *client.Client, up client.Upload, repo, revision string) error {
	x, err := gitexport.Make(cmd.Context(), repo, revision, "")
	if err != nil {
		return err
	}
	defer x.Close()
	for _, path := range x.Submodules {
		fmt.Fprintf(cmd.ErrOrStderr(), "dsec: submodule %s is empty: import it as a layer of its own\n", printable(path))
	}
	p := newProgress(cmd.ErrOrStderr())
	defer p.stop()
	body, size, err := openSource(x.Dir, false)
	if err != nil {
		return err
	}
	defer body.Close()
	if abs, err := filepath.Abs(repo); err == nil {
		repo = abs
	}
	up.Source = "git:" + repo + "@" + x.Commit
	resp, err := upload(cmd, c, up, p.reader(body, size), p.show)
	if err != nil {
		return interrupted(cmd.Context(), err, localLeft)
	}
	p.stop()
	return printImported(cmd, resp)
}

// openSource returns the bytes to send; size < 0 = unknown.
func openSource(source string, keepOwner bool) (io.ReadCloser, int64, error) {
	if source == "-" {
		return io.NopCloser(os.Stdin), -1, nil
	}
	st, err := os.Stat(source)
	if err != nil {
		return nil, 0, err
	}
	if st.IsDir() {
		r, w := io.Pipe()
		go func() { // ends with the pipe: the caller closes its reading end
			err := tarstream.Write(w, source, tarstream.Options{KeepOwner: keepOwner})
			if errors.Is(err, io.ErrClosedPipe) {
				err = nil
			}
			w.CloseWithError(err)
		}()
		return r, -1, nil
	}
	f, err := os.Open(source)
	if err != nil {
		return nil, 0, err
	}
	return f, st.Size(), nil
}

func printImported(cmd *cobra.Command, r *dsecv1.ImportLayerResponse) error {
	if wantJSON(cmd) {
		return printProto(cmd.OutOrStdout(), r)
	}
	note := ""
	switch {
	case r.GetReused():
		note = " (unchanged)"
	case r.GetRepaired():
		note = " (it was damaged in the store, and is mended)"
	}
	l := r.GetLayer()
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s@%s %s%s\n", kindText(l.GetKind()), l.GetName(), l.GetVersion(), l.GetDigest(), note)
	return err
}
