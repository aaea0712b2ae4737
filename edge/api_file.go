package edge

import (
	"context"
	"io/fs"
	"strings"
	"time"
	"unicode/utf8"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/wire"
)

// fileAPI serves FileService.
type fileAPI struct{ e *Edge }

const (
	maxDepth   = 32
	maxEntries = 10_000
)

// enter passes the gate and runs fn with the channel.
func (a *fileAPI) enter(ctx context.Context, id, user string, paths []string, fn func(*aether.Conn) error) error {
	for _, p := range paths {
		if p == "" {
			return invalid("the path is empty")
		}
		if err := checkUserAndDir(user, p); err != nil {
			return err
		}
	}
	b, leave, err := a.e.enter(ctx, id)
	if err != nil {
		return err
	}
	defer leave()
	conn, _, err := b.channel()
	if err != nil {
		return err
	}
	return fn(conn)
}

func (a *fileAPI) StatFile(ctx context.Context, req *dsecv1.StatFileRequest) (*dsecv1.StatFileResponse, error) {
	resp := &dsecv1.StatFileResponse{}
	err := a.enter(ctx, req.SandboxId, req.User, []string{req.Path}, func(c *aether.Conn) error {
		info, err := c.Stat(ctx, req.Path, req.User, !req.NoFollow, req.Attributes)
		resp.File = fileInfo(info)
		return err
	})
	if err != nil {
		return nil, wireError(err)
	}
	return resp, nil
}

func (a *fileAPI) ListDirectory(ctx context.Context, req *dsecv1.ListDirectoryRequest) (*dsecv1.ListDirectoryResponse, error) {
	if req.Depth < 0 || req.Depth > maxDepth || req.MaxEntries < 0 || req.MaxEntries > maxEntries {
		return nil, wireError(invalid("depth is %d and max_entries %d: want at most %d and %d", req.Depth, req.MaxEntries, maxDepth, maxEntries))
	}
	most := int(req.MaxEntries)
	if most == 0 {
		most = maxEntries
	}
	resp := &dsecv1.ListDirectoryResponse{}
	err := a.enter(ctx, req.SandboxId, req.User, []string{req.Path}, func(c *aether.Conn) error {
		files, truncated, err := c.ListDir(ctx, req.Path, req.User, max(1, int(req.Depth)), most, req.Attributes)
		resp.Truncated = truncated
		for _, f := range files {
			f.Path = joined(req.Path, f.Path)
			resp.Files = append(resp.Files, fileInfo(f))
		}
		return err
	})
	if err != nil {
		return nil, wireError(err)
	}
	return resp, nil
}

// joined puts the directory, as it was asked for, before a name in it. It does not clean: "a/.." need not be here.
func joined(dir, name string) string {
	if strings.HasSuffix(dir, "/") {
		return dir + name
	}
	return dir + "/" + name
}

func (a *fileAPI) MakeDirectory(ctx context.Context, req *dsecv1.MakeDirectoryRequest) (*dsecv1.MakeDirectoryResponse, error) {
	mode := req.Mode
	if mode == 0 {
		mode = 0o755
	}
	if mode > 0o7777 {
		return nil, wireError(invalid("mode is %#o: want permission bits, at most 07777", mode))
	}
	err := a.enter(ctx, req.SandboxId, req.User, []string{req.Path}, func(c *aether.Conn) error {
		return c.Mkdir(ctx, req.Path, req.User, req.Parents, mode)
	})
	return &dsecv1.MakeDirectoryResponse{}, wireError(err)
}

func (a *fileAPI) MoveFile(ctx context.Context, req *dsecv1.MoveFileRequest) (*dsecv1.MoveFileResponse, error) {
	err := a.enter(ctx, req.SandboxId, req.User, []string{req.From, req.To}, func(c *aether.Conn) error {
		return c.Rename(ctx, req.From, req.To, req.User)
	})
	return &dsecv1.MoveFileResponse{}, wireError(err)
}

func (a *fileAPI) RemoveFile(ctx context.Context, req *dsecv1.RemoveFileRequest) (*dsecv1.RemoveFileResponse, error) {
	err := a.enter(ctx, req.SandboxId, req.User, []string{req.Path}, func(c *aether.Conn) error {
		return c.Remove(ctx, req.Path, req.User, req.Recursive, req.Force)
	})
	return &dsecv1.RemoveFileResponse{}, wireError(err)
}

// Types of st_mode.
const (
	modeType    = 0o170000
	modeFIFO    = 0o010000
	modeChar    = 0o020000
	modeDir     = 0o040000
	modeBlock   = 0o060000
	modeRegular = 0o100000
	modeSymlink = 0o120000
	modeSocket  = 0o140000
)

var typeWords = map[uint32]string{
	modeFIFO: "fifo", modeChar: "char_device", modeDir: "directory", modeBlock: "block_device",
	modeRegular: "file", modeSymlink: "symlink", modeSocket: "socket",
}

// fileInfo is what the API says of a file; names are the sandbox's and may be any bytes.
func fileInfo(f wire.FileInfo) *dsecv1.FileInfo {
	out := &dsecv1.FileInfo{
		Path: clip(f.Path, len(f.Path)), Type: typeWords[f.Mode&modeType], Size: f.Size, Mode: f.Mode &^ modeType,
		Uid: f.UID, Gid: f.GID, ModifiedAt: stamp(time.Unix(0, f.MtimeNS)), SymlinkTarget: clip(f.Target, len(f.Target)),
	}
	if !utf8.ValidString(f.Path) {
		out.PathBytes = []byte(f.Path)
	}
	for _, a := range f.Attrs {
		if utf8.ValidString(a.Name) {
			if out.Attributes == nil {
				out.Attributes = map[string][]byte{}
			}
			out.Attributes[a.Name] = []byte(a.Value)
		}
	}
	if out.Type == "" {
		out.Type = fs.ModeIrregular.String()
	}
	return out
}
