package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"connectrpc.com/connect"
	"github.com/opendsec/dsec/sandbox"
)

// codes maps the sentinel kinds to wire codes, one to one.
var codes = []struct {
	kind error
	code connect.Code
}{
	{sandbox.ErrInvalid, connect.CodeInvalidArgument},
	{sandbox.ErrNotFound, connect.CodeNotFound},
	{sandbox.ErrAlreadyExists, connect.CodeAlreadyExists},
	{sandbox.ErrConflict, connect.CodeAborted},
	{sandbox.ErrFailedPrecondition, connect.CodeFailedPrecondition},
	{sandbox.ErrExhausted, connect.CodeResourceExhausted},
	{sandbox.ErrPermission, connect.CodePermissionDenied},
	{sandbox.ErrUnauthenticated, connect.CodeUnauthenticated},
	{sandbox.ErrUnavailable, connect.CodeUnavailable},
	{sandbox.ErrUnsupported, connect.CodeUnimplemented},
	{sandbox.ErrDeadline, connect.CodeDeadlineExceeded},
	{context.Canceled, connect.CodeCanceled},
	{context.DeadlineExceeded, connect.CodeDeadlineExceeded},
}

// retryAfter is the advice (seconds) that goes with "unavailable": a role that died is back by then.
const retryAfter = 1

// connectError turns any error into one for the wire. Errors that an edge answered keep code, message and
// details.
func connectError(err error) *connect.Error {
	out := connect.NewError(codeOf(err), err)
	if ce := new(connect.Error); errors.As(err, &ce) {
		if _, direct := err.(*connect.Error); direct {
			out = connect.NewError(ce.Code(), errors.New(ce.Message()))
		}
		for _, d := range ce.Details() {
			out.AddDetail(d)
		}
	}
	if out.Code() == connect.CodeUnavailable {
		out.Meta().Set("Retry-After", strconv.Itoa(retryAfter))
	}
	return out
}

// codeOf prefers our own kinds to a code from below: a broken connection to an edge is unavailable, whatever
// the client library called it.
func codeOf(err error) connect.Code {
	for _, c := range codes {
		if errors.Is(err, c.kind) {
			return c.code
		}
	}
	if ce := new(connect.Error); errors.As(err, &ce) {
		return ce.Code()
	}
	return connect.CodeInternal
}

// httpStatus of a code, as Connect defines it.
func httpStatus(code connect.Code) int {
	switch code {
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeOutOfRange:
		return http.StatusBadRequest
	case connect.CodeUnauthenticated:
		return http.StatusUnauthorized
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodeAlreadyExists, connect.CodeAborted:
		return http.StatusConflict
	case connect.CodeResourceExhausted:
		return http.StatusTooManyRequests
	case connect.CodeCanceled:
		return 499
	case connect.CodeUnimplemented:
		return http.StatusNotImplemented
	case connect.CodeUnavailable:
		return http.StatusServiceUnavailable
	case connect.CodeDeadlineExceeded:
		return http.StatusGatewayTimeout
	default:
		return http.StatusInternalServerError
	}
}

// writeError answers in the protocol of the request: Connect, gRPC, gRPC-Web, or plain JSON of the same shape
// {"code","message"}.
func (s *Server) writeError(w http.ResponseWriter, r *http.Request, err error) {
	ce := connectError(err)
	s.metrics.failures.WithLabelValues(ce.Code().String()).Inc()
	if ce.Code() == connect.CodeUnauthenticated {
		w.Header().Set("WWW-Authenticate", `Bearer realm="dsec"`)
	}
	if s.errors.IsSupported(r) {
		_ = s.errors.Write(w, r, ce) // the client is gone
		return
	}
	writeJSONError(w, ce)
}

func writeJSONError(w http.ResponseWriter, ce *connect.Error) {
	for k, v := range ce.Meta() {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	text, _ := json.Marshal(map[string]string{"code": ce.Code().String(), "message": ce.Message()})
	w.Header().Set("Content-Length", strconv.Itoa(len(text)+1)) // whole, also before the request's body was read
	w.WriteHeader(httpStatus(ce.Code()))
	_, _ = w.Write(append(text, '\n'))
}
