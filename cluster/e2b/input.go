package e2b

import (
	"context"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	pb "github.com/opendsec/dsec/cluster/e2b/envd/process"
)

// bytesOf is what is to be written; standard input and terminal are one to us.
func bytesOf(in *pb.ProcessInput) []byte {
	if b := in.GetPty(); len(b) > 0 {
		return b
	}
	return in.GetStdin()
}

func (p process) SendInput(ctx context.Context, req *pb.SendInputRequest) (*pb.SendInputResponse, error) {
	t := targetOf(ctx)
	c, err := p.d.find(ctx, req.GetProcess(), true)
	if err == nil {
		_, err = p.d.commands.SendInput(ctx, &dsecv1.SendInputRequest{SandboxId: string(t.id), CommandId: c.GetId(), Data: bytesOf(req.GetInput())})
	}
	if err != nil {
		return nil, rpcError(t.id, err)
	}
	return &pb.SendInputResponse{}, nil
}

// CloseStdin ends a program's input.
func (p process) CloseStdin(ctx context.Context, req *pb.CloseStdinRequest) (*pb.CloseStdinResponse, error) {
	t := targetOf(ctx)
	c, err := p.d.find(ctx, req.GetProcess(), true)
	if err == nil {
		_, err = p.d.commands.SendInput(ctx, &dsecv1.SendInputRequest{SandboxId: string(t.id), CommandId: c.GetId(), Close: true})
	}
	if err != nil {
		return nil, rpcError(t.id, err)
	}
	return &pb.CloseStdinResponse{}, nil
}

// StreamInput writes piece by piece; a piece is taken when the one before was written.
func (p process) StreamInput(ctx context.Context, in *connect.ClientStream[pb.StreamInputRequest]) (*pb.StreamInputResponse, error) {
	t := targetOf(ctx)
	var c *dsecv1.Command
	for in.Receive() {
		var err error
		switch m := in.Msg(); {
		case m.GetStart() != nil && c == nil:
			c, err = p.d.find(ctx, m.GetStart().GetProcess(), true)
		case m.GetStart() != nil:
			err = refused(400, "the stream has started already")
		case m.GetData() != nil && c == nil:
			err = refused(400, "the stream begins with data: want start")
		case m.GetData() != nil:
			_, err = p.d.commands.SendInput(ctx, &dsecv1.SendInputRequest{SandboxId: string(t.id), CommandId: c.GetId(), Data: bytesOf(m.GetData().GetInput())})
		}
		if err != nil {
			return nil, rpcError(t.id, err)
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	return &pb.StreamInputResponse{}, nil
}
