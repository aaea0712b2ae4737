package e2b

import (
	"context"
	"errors"
	"path"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	pb "github.com/opendsec/dsec/cluster/e2b/envd/filesystem"
	"github.com/opendsec/dsec/cluster/e2b/envd/filesystem/filesystemconnect"
)

// filesystem serves files of one sandbox, but for their contents.
type filesystem struct {
	filesystemconnect.UnimplementedFilesystemHandler
	d *Door
}

// maxLinks is how many symbolic links of one listing are looked behind; the others are shown as links.
const maxLinks = 1000

func (f filesystem) Stat(ctx context.Context, req *pb.StatRequest) (*pb.StatResponse, error) {
	e, err := f.d.entry(ctx, req.GetPath())
	if err != nil {
		return nil, f.failed(ctx, err)
	}
	return &pb.StatResponse{Entry: e}, nil
}

func (f filesystem) failed(ctx context.Context, err error) error {
	return rpcError(targetOf(ctx).id, err)
}

// entry describes one path.
func (d *Door) entry(ctx context.Context, p string) (*pb.EntryInfo, error) {
	t := targetOf(ctx)
	p, err := d.absolute(ctx, p, t.user)
	if err != nil {
		return nil, err
	}
	resp, err := d.files.StatFile(ctx, &dsecv1.StatFileRequest{SandboxId: string(t.id), Path: p, User: t.user, NoFollow: true, Attributes: true})
	if err != nil {
		return nil, err
	}
	n, err := d.namesIn(ctx)
	if err != nil {
		return nil, err
	}
	return d.entryOf(ctx, n, resp.GetFile(), p, true), nil
}

// entryOf describes a file as clients know it: a link by what it leads to, where that is looked at.
func (d *Door) entryOf(ctx context.Context, n *namesOf, i *dsecv1.FileInfo, p string, follow bool) *pb.EntryInfo {
	t := targetOf(ctx)
	e := &pb.EntryInfo{Name: path.Base(p), Path: p, Type: typeOf(i)}
	if i.GetType() == "symlink" {
		e.IsSymlink = true
		e.SymlinkTarget = proto.String(i.GetSymlinkTarget())
		if follow {
			resp, err := d.files.StatFile(ctx, &dsecv1.StatFileRequest{SandboxId: string(t.id), Path: p, User: t.user, Attributes: true})
			if err == nil {
				i = resp.GetFile()
				e.Type = typeOf(i)
			}
		}
	}
	e.Size, e.Mode, e.Permissions = i.GetSize(), i.GetMode()&0o777, permissions(i)
	e.Owner, e.Group, e.ModifiedTime = n.user(i.GetUid()), n.group(i.GetGid()), i.GetModifiedAt()
	e.Metadata = metadataIn(i)
	return e
}

func typeOf(i *dsecv1.FileInfo) pb.FileType {
	switch i.GetType() {
	case "file":
		return pb.FileType_FILE_TYPE_FILE
	case "directory":
		return pb.FileType_FILE_TYPE_DIRECTORY
	case "symlink":
		return pb.FileType_FILE_TYPE_SYMLINK
	}
	return pb.FileType_FILE_TYPE_UNSPECIFIED
}

// permissions writes a mode as ls does.
func permissions(i *dsecv1.FileInfo) string {
	first := map[string]byte{"directory": 'd', "symlink": 'l', "fifo": 'p', "socket": 's', "char_device": 'c', "block_device": 'b'}[i.GetType()]
	if first == 0 {
		first = '-'
	}
	out := []byte{first}
	for bit := 8; bit >= 0; bit-- {
		c := byte('-')
		if i.GetMode()&(1<<bit) != 0 {
			c = "xwr"[bit%3]
		}
		out = append(out, c)
	}
	for n, special := range []struct {
		bit  uint32
		with byte
	}{{0o4000, 's'}, {0o2000, 's'}, {0o1000, 't'}} {
		if at := 3 * (n + 1); i.GetMode()&special.bit != 0 {
			if out[at] == 'x' {
				out[at] = special.with
			} else {
				out[at] = special.with - 'a' + 'A'
			}
		}
	}
	return string(out)
}

// MakeDir makes missing parents too.
func (f filesystem) MakeDir(ctx context.Context, req *pb.MakeDirRequest) (*pb.MakeDirResponse, error) {
	t := targetOf(ctx)
	if is, err := f.d.entry(ctx, req.GetPath()); err == nil {
		if is.GetType() == pb.FileType_FILE_TYPE_DIRECTORY {
			return nil, connect.NewError(connect.CodeAlreadyExists, errors.New("directory already exists: "+is.GetPath()))
		}
		return nil, f.failed(ctx, refused(400, "%s is there and no directory", is.GetPath()))
	} else if word(err) != "not_found" {
		return nil, f.failed(ctx, err)
	}
	p, err := f.d.absolute(ctx, req.GetPath(), t.user)
	if err == nil {
		_, err = f.d.files.MakeDirectory(ctx, &dsecv1.MakeDirectoryRequest{SandboxId: string(t.id), Path: p, User: t.user, Parents: true})
	}
	if err != nil {
		return nil, f.failed(ctx, err)
	}
	e, err := f.d.entry(ctx, p)
	if err != nil {
		return nil, f.failed(ctx, err)
	}
	return &pb.MakeDirResponse{Entry: e}, nil
}

// Move makes the directories above the destination.
func (f filesystem) Move(ctx context.Context, req *pb.MoveRequest) (*pb.MoveResponse, error) {
	t := targetOf(ctx)
	from, err := f.d.absolute(ctx, req.GetSource(), t.user)
	if err != nil {
		return nil, f.failed(ctx, err)
	}
	to, err := f.d.absolute(ctx, req.GetDestination(), t.user)
	if err != nil {
		return nil, f.failed(ctx, err)
	}
	move := &dsecv1.MoveFileRequest{SandboxId: string(t.id), From: from, To: to, User: t.user}
	if _, err = f.d.files.MoveFile(ctx, move); word(err) == "not_found" {
		// Either the source is missing, or what is above the destination.
		if _, serr := f.d.files.StatFile(ctx, &dsecv1.StatFileRequest{SandboxId: string(t.id), Path: from, User: t.user, NoFollow: true}); serr != nil {
			return nil, f.failed(ctx, serr)
		}
		if _, err = f.d.files.MakeDirectory(ctx, &dsecv1.MakeDirectoryRequest{SandboxId: string(t.id), Path: path.Dir(to), User: t.user, Parents: true}); err == nil {
			_, err = f.d.files.MoveFile(ctx, move)
		}
	}
	if err != nil {
		return nil, f.failed(ctx, err)
	}
	e, err := f.d.entry(ctx, to)
	if err != nil {
		return nil, f.failed(ctx, err)
	}
	return &pb.MoveResponse{Entry: e}, nil
}

// ListDir lists to a depth; a directory with more entries than the API gives at once is refused, not cut.
func (f filesystem) ListDir(ctx context.Context, req *pb.ListDirRequest) (*pb.ListDirResponse, error) {
	t := targetOf(ctx)
	p, err := f.d.absolute(ctx, req.GetPath(), t.user)
	if err != nil {
		return nil, f.failed(ctx, err)
	}
	depth := max(1, req.GetDepth())
	if depth > 32 {
		return nil, f.failed(ctx, refused(400, "depth is %d: want at most 32", depth))
	}
	resp, err := f.d.files.ListDirectory(ctx, &dsecv1.ListDirectoryRequest{SandboxId: string(t.id), Path: p, User: t.user, Depth: int32(depth), Attributes: true})
	if err != nil {
		return nil, f.failed(ctx, err)
	}
	if resp.GetTruncated() {
		return nil, connect.NewError(connect.CodeResourceExhausted, errors.New(p+" has more than 10,000 entries: list a part of it, or less deep"))
	}
	n, err := f.d.namesIn(ctx)
	if err != nil {
		return nil, f.failed(ctx, err)
	}
	out := &pb.ListDirResponse{}
	links := 0
	for _, i := range resp.GetFiles() {
		if i.GetType() == "symlink" {
			links++
		}
		out.Entries = append(out.Entries, f.d.entryOf(ctx, n, i, path.Clean(i.GetPath()), links <= maxLinks))
	}
	return out, nil
}

// Remove takes directories with what is in them.
func (f filesystem) Remove(ctx context.Context, req *pb.RemoveRequest) (*pb.RemoveResponse, error) {
	t := targetOf(ctx)
	p, err := f.d.absolute(ctx, req.GetPath(), t.user)
	if err == nil {
		_, err = f.d.files.RemoveFile(ctx, &dsecv1.RemoveFileRequest{SandboxId: string(t.id), Path: p, User: t.user, Recursive: true, Force: true})
	}
	if err != nil {
		return nil, f.failed(ctx, err)
	}
	return &pb.RemoveResponse{}, nil
}
