package e2b

import (
	"context"
	"errors"
	"path"
	"regexp"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	pb "github.com/opendsec/dsec/cluster/e2b/envd/filesystem"
)

// errLost ends a watch that could not keep up: clients know no event for it, and must not take silence for peace.
var errLost = connect.NewError(connect.CodeResourceExhausted, errors.New("more happened in the directory than could be told: list it anew, and watch again"))

// watched is what is being watched.
type watched struct {
	d     *Door
	dir   string
	entry bool // describe files
	// placed counts, by directory, files that were moved out of their temporary name, and whose new one is not told yet.
	placed map[string]int
}

// temporary is the name under which our API writes a file before it takes its place.
var temporary = regexp.MustCompile(`^\.dsec-[0-9a-z]+\.tmp$`)

const maxPlaced = 1024 // directories

// tell turns what happened into what clients know: to them a file that is uploaded is created and written where it belongs, and
// the temporary one was never there.
func (w *watched) tell(e *dsecv1.FileEvent) []*dsecv1.FileEvent {
	dir, name := path.Split(e.GetPath())
	switch moved := e.GetKind() == dsecv1.FileEventKind_FILE_EVENT_KIND_MOVED; {
	case temporary.MatchString(name) && !e.GetDirectory():
		if moved && len(w.placed) < maxPlaced {
			w.placed[dir]++
		}
		return nil
	case e.GetKind() == dsecv1.FileEventKind_FILE_EVENT_KIND_CREATED && !e.GetDirectory() && w.placed[dir] > 0:
		if w.placed[dir]--; w.placed[dir] == 0 {
			delete(w.placed, dir)
		}
		written := proto.Clone(e).(*dsecv1.FileEvent)
		written.Kind = dsecv1.FileEventKind_FILE_EVENT_KIND_WRITTEN
		return []*dsecv1.FileEvent{e, written}
	}
	return []*dsecv1.FileEvent{e}
}

// open begins to watch; the stream's first message, that it began, has been received. The caller closes it.
func (d *Door) openWatch(ctx context.Context, dir string, recursive, entry bool) (*watched, *connect.ServerStreamForClient[dsecv1.WatchDirectoryResponse], error) {
	t := targetOf(ctx)
	p, err := d.absolute(ctx, dir, t.user)
	if err != nil {
		return nil, nil, err
	}
	s, err := d.files.WatchDirectory(ctx, &dsecv1.WatchDirectoryRequest{SandboxId: string(t.id), Path: p, User: t.user, Recursive: recursive})
	if err != nil {
		return nil, nil, err
	}
	for s.Receive() {
		if s.Msg().GetStarted() != nil {
			return &watched{d, p, entry, map[string]int{}}, s, nil
		}
	}
	if err = s.Err(); err == nil {
		err = connect.NewError(connect.CodeUnavailable, errors.New("the watch ended before it began"))
	}
	_ = s.Close()
	return nil, nil, err
}

// end is how clients are told that a watch has ended: of a directory that is gone, without an error.
func (w *watched) end(ctx context.Context, err error) error {
	if err == nil || word(err) == "not_found" {
		return nil
	}
	return rpcError(targetOf(ctx).id, err)
}

var eventTypes = map[dsecv1.FileEventKind]pb.EventType{
	dsecv1.FileEventKind_FILE_EVENT_KIND_CREATED:    pb.EventType_EVENT_TYPE_CREATE,
	dsecv1.FileEventKind_FILE_EVENT_KIND_WRITTEN:    pb.EventType_EVENT_TYPE_WRITE,
	dsecv1.FileEventKind_FILE_EVENT_KIND_REMOVED:    pb.EventType_EVENT_TYPE_REMOVE,
	dsecv1.FileEventKind_FILE_EVENT_KIND_MOVED:      pb.EventType_EVENT_TYPE_RENAME,
	dsecv1.FileEventKind_FILE_EVENT_KIND_ATTRIBUTES: pb.EventType_EVENT_TYPE_CHMOD,
}

// event translates; files that are gone meanwhile are told without an entry.
func (w *watched) event(ctx context.Context, e *dsecv1.FileEvent) *pb.FilesystemEvent {
	out := &pb.FilesystemEvent{Name: e.GetPath(), Type: eventTypes[e.GetKind()]}
	switch out.Type {
	case pb.EventType_EVENT_TYPE_REMOVE, pb.EventType_EVENT_TYPE_RENAME:
		return out
	}
	if w.entry {
		if i, err := w.d.entry(ctx, path.Join(w.dir, e.GetPath())); err == nil {
			out.Entry = i
		}
	}
	return out
}

// WatchDir streams events.
func (f filesystem) WatchDir(ctx context.Context, req *pb.WatchDirRequest, out *connect.ServerStream[pb.WatchDirResponse]) error {
	w, s, err := f.d.openWatch(ctx, req.GetPath(), req.GetRecursive(), req.GetIncludeEntry())
	if err != nil {
		return f.failed(ctx, err)
	}
	defer s.Close()
	if err := out.Send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Start{Start: &pb.WatchDirResponse_StartEvent{}}}); err != nil {
		return err
	}
	for s.Receive() {
		var send []*pb.WatchDirResponse
		switch e := s.Msg().GetFile(); {
		case e == nil:
			send = append(send, &pb.WatchDirResponse{Event: &pb.WatchDirResponse_Keepalive{Keepalive: &pb.WatchDirResponse_KeepAlive{}}})
		case e.GetKind() == dsecv1.FileEventKind_FILE_EVENT_KIND_LOST:
			return errLost
		default:
			for _, e := range w.tell(e) {
				send = append(send, &pb.WatchDirResponse{Event: &pb.WatchDirResponse_Filesystem{Filesystem: w.event(ctx, e)}})
			}
		}
		for _, m := range send {
			if err := out.Send(m); err != nil {
				return err
			}
		}
	}
	return w.end(ctx, s.Err())
}
