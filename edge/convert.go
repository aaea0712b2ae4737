package edge

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// maxEvidence bounds a failure's evidence, maxMessage its sentence; both may hold what a sandbox said.
const (
	maxEvidence = 4 << 10
	maxMessage  = 1 << 10
)

var blames = map[sandbox.Blame]dsecv1.Blame{
	sandbox.BlameTask:   dsecv1.Blame_BLAME_TASK,
	sandbox.BlameUser:   dsecv1.Blame_BLAME_USER,
	sandbox.BlamePolicy: dsecv1.Blame_BLAME_POLICY,
	sandbox.BlameInfra:  dsecv1.Blame_BLAME_INFRA,
}

func failureProto(f *sandbox.Failure) *dsecv1.Failure {
	if f == nil {
		return nil
	}
	return &dsecv1.Failure{Kind: string(f.Kind), Blame: blames[f.Blame], Message: clip(f.Message, maxMessage), Evidence: clip(f.Evidence, maxEvidence)}
}

func failureFrom(p *dsecv1.Failure) *sandbox.Failure {
	if p == nil {
		return nil
	}
	f := &sandbox.Failure{Kind: sandbox.Kind(p.Kind), Message: p.Message, Evidence: p.Evidence}
	for b, v := range blames {
		if v == p.Blame {
			f.Blame = b
		}
	}
	return f
}

// clip makes s valid UTF-8 of at most n bytes.
func clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

var states = map[sandbox.State]dsecv1.SandboxState{
	sandbox.StateCreating: dsecv1.SandboxState_SANDBOX_STATE_CREATING,
	sandbox.StateRunning:  dsecv1.SandboxState_SANDBOX_STATE_RUNNING,
	sandbox.StatePaused:   dsecv1.SandboxState_SANDBOX_STATE_PAUSED,
	sandbox.StateStopping: dsecv1.SandboxState_SANDBOX_STATE_STOPPING,
	sandbox.StateStopped:  dsecv1.SandboxState_SANDBOX_STATE_STOPPED,
}

var backendNames = map[dsecv1.Backend]sandbox.BackendName{
	dsecv1.Backend_BACKEND_CONTAINER: sandbox.BackendContainer,
	dsecv1.Backend_BACKEND_MICROVM:   sandbox.BackendMicroVM,
	dsecv1.Backend_BACKEND_FULLVM:    sandbox.BackendFullVM,
	dsecv1.Backend_BACKEND_FNCALL:    sandbox.BackendFnCall,
	dsecv1.Backend_BACKEND_FAKE:      sandbox.BackendFake,
}

func backendProto(name sandbox.BackendName) dsecv1.Backend {
	for p, n := range backendNames {
		if n == name {
			return p
		}
	}
	return dsecv1.Backend_BACKEND_UNSPECIFIED
}

// stamp is nil for the zero time.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
