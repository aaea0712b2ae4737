package edge

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

// eventOf is the event that an entry of the record stands for; nil if none.
func eventOf(id sandbox.ID, e *record.Entry) *dsecv1.Event {
	ev := &dsecv1.Event{SandboxId: string(id), Sequence: e.Sequence, At: timestamppb.New(time.Unix(0, e.WallNanos))}
	switch body := e.Body.(type) {
	case *record.Entry_Created:
		ev.Type = "created"
		ev.Attributes = map[string]string{"layers": strings.Join(body.Created.Layers, ",")}
	case *record.Entry_Ready:
		ev.Type = "ready"
		if body.Ready.Boot != "" {
			ev.Attributes = map[string]string{"boot": body.Ready.Boot}
			if how := body.Ready.Layers; how != "" {
				ev.Attributes["layers"] = how
			}
			if v := body.Ready.Kernel; v != "" {
				ev.Attributes["kernel"] = v
			}
		}
	case *record.Entry_Paused:
		ev.Type = "paused"
	case *record.Entry_Resumed:
		ev.Type = "resumed"
	case *record.Entry_Extended:
		ev.Type = "extended"
		ev.Attributes = map[string]string{}
		if x := body.Extended; x.TtlNanos != nil {
			ev.Attributes["ttl"] = time.Duration(*x.TtlNanos).String()
		}
		if x := body.Extended; x.IdleNanos != nil {
			ev.Attributes["idle_timeout"] = time.Duration(*x.IdleNanos).String()
		}
	case *record.Entry_Stopping:
		failureEvent(ev, "stopping", body.Stopping.Failure)
	case *record.Entry_Ended:
		failureEvent(ev, "ended", body.Ended.Failure)
	case *record.Entry_NetworkAsked:
		ev.Type, ev.Attributes = "network_set", map[string]string{"generation": strconv.FormatInt(body.NetworkAsked.Generation, 10)}
		ev.Message = clip(strings.Join(texts(body.NetworkAsked.Rules), " "), maxMessage)
		if c := body.NetworkAsked.Ceiling; c != nil {
			ev.Attributes["ceiling"] = clip(strings.Join(texts(c.GetPolicy().GetRules()), " "), 256)
		}
	case *record.Entry_CommandStarted:
		c := body.CommandStarted
		ev.Type, ev.Message = "command_started", summary(c.Spec)
		ev.Attributes = map[string]string{"command": c.Id}
		if c.OperationId != "" {
			ev.Attributes["operation"] = c.OperationId
		}
	case *record.Entry_CommandEnded:
		c := body.CommandEnded
		failureEvent(ev, "command_ended", c.GetResult().GetEnd())
		ev.Attributes["command"] = c.Id
		ev.Attributes["exit_code"] = strconv.Itoa(int(c.GetResult().GetExitCode()))
		if n := c.GetResult().GetOomKills(); n > 0 {
			ev.Attributes["oom_kills"] = strconv.Itoa(int(n))
		}
	case *record.Entry_SessionOpened:
		ev.Type, ev.Attributes = "session_opened", map[string]string{"session": body.SessionOpened.Id}
	case *record.Entry_SessionEnded:
		failureEvent(ev, "session_ended", body.SessionEnded.End)
		ev.Attributes["session"] = body.SessionEnded.Id
	case *record.Entry_Note:
		ev.Type, ev.Message, ev.Attributes = body.Note.Type, body.Note.Message, body.Note.Attributes
	case *record.Entry_Checkpoint:
		ev.Type, ev.Message = "compacted", fmt.Sprintf("the record was compacted; %d ended commands are no longer kept", body.Checkpoint.ForgottenCommands)
	default:
		return nil
	}
	return ev
}

func failureEvent(ev *dsecv1.Event, kind string, f *dsecv1.Failure) {
	ev.Type, ev.Message = kind, f.GetMessage()
	ev.Attributes = map[string]string{"kind": f.GetKind(), "blame": blameWord(f.GetBlame())}
}

func blameWord(b dsecv1.Blame) string {
	return strings.ToLower(strings.TrimPrefix(b.String(), "BLAME_"))
}

// summary is a command in at most 120 bytes.
func summary(s *dsecv1.CommandSpec) string {
	text := s.GetShell()
	if len(s.GetArgv()) > 0 {
		text = strings.Join(s.GetArgv(), " ")
	}
	if len(text) > 120 {
		return clip(text, 117) + "..."
	}
	return text
}
