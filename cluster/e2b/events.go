package e2b

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	pb "github.com/opendsec/dsec/cluster/e2b/envd/process"
)

func started(c *dsecv1.Command) *pb.ProcessEvent {
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Start{Start: &pb.ProcessEvent_StartEvent{Pid: uint32(c.GetPid())}}}
}

func data(s dsecv1.Stream, b []byte) *pb.ProcessEvent {
	d := &pb.ProcessEvent_DataEvent{}
	switch s {
	case dsecv1.Stream_STREAM_STDERR:
		d.Output = &pb.ProcessEvent_DataEvent_Stderr{Stderr: b}
	case dsecv1.Stream_STREAM_TERMINAL:
		d.Output = &pb.ProcessEvent_DataEvent_Pty{Pty: b}
	default:
		d.Output = &pb.ProcessEvent_DataEvent_Stdout{Stdout: b}
	}
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Data{Data: d}}
}

// translate turns an event into those that clients know. Output that was cut out of the record is marked in its place.
func translate(e *dsecv1.CommandEvent) []*pb.ProcessEvent {
	switch {
	case e.GetStarted() != nil && e.GetStarted().GetPid() == 0:
		return nil // it could not be started, which its end says
	case e.GetStarted() != nil:
		return []*pb.ProcessEvent{started(e.GetStarted())}
	case e.GetOutput() != nil:
		o := e.GetOutput()
		var out []*pb.ProcessEvent
		if n := o.GetCutBytes(); n > 0 {
			out = append(out, data(o.GetStream(), fmt.Appendf(nil, "\n[%d bytes of output were not kept]\n", n)))
		}
		if len(o.GetData()) > 0 {
			out = append(out, data(o.GetStream(), o.GetData()))
		}
		return out
	case e.GetEnded() != nil:
		if end := endOf(e.GetEnded().GetResult()); end != nil {
			return []*pb.ProcessEvent{{Event: &pb.ProcessEvent_End{End: end}}}
		}
		return nil
	case e.GetKeepAlive() != nil:
		return []*pb.ProcessEvent{{Event: &pb.ProcessEvent_Keepalive{Keepalive: &pb.ProcessEvent_KeepAlive{}}}}
	}
	return nil
}

// endOf is the end of a program that came by its own doing or somebody's signal; nil when it is told as an error.
func endOf(r *dsecv1.CommandResult) *pb.ProcessEvent_EndEvent {
	f := r.GetEnd()
	if f.GetKind() == "timed_out" || f.GetKind() == "cannot_start" || f.GetBlame() == dsecv1.Blame_BLAME_INFRA {
		return nil
	}
	if r.GetSignal() == 0 {
		end := &pb.ProcessEvent_EndEvent{ExitCode: r.GetExitCode(), Exited: true, Status: fmt.Sprintf("exit status %d", r.GetExitCode())}
		if r.GetExitCode() != 0 {
			end.Error = proto.String(end.Status)
		}
		return end
	}
	// As a daemon in Go says it: a program that a signal ended has no exit code.
	end := &pb.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: " + syscall.Signal(r.GetSignal()).String()}
	end.Error = proto.String(end.Status)
	if f.GetKind() != "signalled" {
		end.Error = proto.String(failureText(f))
	}
	return end
}

// ended tells whether an event is the last one, and with which error the stream ends: what the platform did to a program
// is never an exit of its own.
func ended(e *dsecv1.CommandEvent) (bool, error) {
	if e.GetEnded() == nil {
		return false, nil
	}
	r := e.GetEnded().GetResult()
	switch f := r.GetEnd(); {
	case f.GetKind() == "cannot_start" && strings.HasPrefix(f.GetMessage(), "user "):
		return true, connect.NewError(connect.CodeUnauthenticated, errors.New(noSuchUser(f.GetMessage())))
	case f.GetKind() == "cannot_start":
		return true, connect.NewError(connect.CodeInvalidArgument, errors.New(f.GetMessage()))
	case f.GetKind() == "timed_out":
		return true, connect.NewError(connect.CodeDeadlineExceeded, errors.New(failureText(f)))
	case f.GetBlame() == dsecv1.Blame_BLAME_INFRA:
		return true, connect.NewError(connect.CodeInternal, errors.New(failureText(f)))
	}
	return true, nil
}
