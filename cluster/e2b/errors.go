package e2b

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/tcptunnel"
	"github.com/opendsec/dsec/sandbox"
)

// statusError is an error whose HTTP status is decided.
type statusError struct {
	status  int
	message string
}

func (e *statusError) Error() string { return e.message }

func refused(status int, format string, args ...any) error {
	return &statusError{status, fmt.Sprintf(format, args...)}
}

func unsupported(format string, args ...any) error {
	return refused(http.StatusBadRequest, "not supported by this service: "+format, args...)
}

// word is the finer code that an error carries: no_such_user, is_a_directory; "" for none.
func word(err error) string {
	var ce *connect.Error
	if errors.As(err, &ce) {
		for _, d := range ce.Details() {
			if v, verr := d.Value(); verr == nil {
				if e, ok := v.(*dsecv1.Error); ok {
					return e.GetCode()
				}
			}
		}
	}
	return ""
}

// failure is whose fault an error is, where it says so: of a sandbox that has ended, for example.
func failure(err error) *dsecv1.Failure {
	var ce *connect.Error
	if errors.As(err, &ce) {
		for _, d := range ce.Details() {
			if v, verr := d.Value(); verr == nil {
				if f, ok := v.(*dsecv1.Failure); ok {
					return f
				}
			}
		}
	}
	return nil
}

// gone tells that the sandbox of a request is not there, or has ended.
func gone(err error) bool {
	if f := failure(err); f != nil {
		return true
	}
	return connect.CodeOf(err) == connect.CodeNotFound && word(err) == ""
}

// message is the text of an error without the code that connect puts before it.
func message(err error) string {
	var ce *connect.Error
	if errors.As(err, &ce) {
		return ce.Message()
	}
	return err.Error()
}

// statusOf is the HTTP status of an error: of what cannot be done always one of 4xx.
func statusOf(err error) int {
	var s *statusError
	if errors.As(err, &s) {
		return s.status
	}
	switch {
	case errors.Is(err, sandbox.ErrUnauthenticated):
		return http.StatusUnauthorized
	case errors.Is(err, sandbox.ErrUnavailable):
		return http.StatusServiceUnavailable
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeOutOfRange, connect.CodeUnimplemented:
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
		if word(err) == "no_space" {
			return http.StatusInsufficientStorage
		}
		return http.StatusTooManyRequests
	case connect.CodeUnavailable:
		return http.StatusServiceUnavailable
	case connect.CodeDeadlineExceeded:
		return http.StatusGatewayTimeout
	case connect.CodeCanceled:
		return 499
	}
	return http.StatusInternalServerError
}

// apiError is the body of every error of the control face.
type apiError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func toAPIError(err error) apiError {
	if gone(err) {
		return apiError{http.StatusNotFound, message(err)}
	}
	return apiError{statusOf(err), message(err)}
}

// writeControl answers with an error of the control face.
func writeControl(w http.ResponseWriter, err error) {
	e := toAPIError(err)
	if e.Code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, e.Code, e)
}

// dataError is the body of an error of the data face, in the words that clients look for.
type dataError struct {
	SandboxID string `json:"sandboxId,omitempty"`
	Message   string `json:"message"`
	Code      int    `json:"code"`
	Port      int    `json:"port,omitempty"`
}

// writeData answers with an error of the data face. A sandbox that is not there is 502, as behind a proxy.
func writeData(w http.ResponseWriter, r *http.Request, err error) {
	t := targetOf(r.Context())
	e := dataError{SandboxID: string(t.id), Message: message(err), Code: statusOf(err)}
	var closed *tcptunnel.Refused
	switch {
	case gone(err):
		e.Code, e.Message = http.StatusBadGateway, notFound(t.id, err)
	case word(err) == wordPaused:
		e.Code, e.Message = http.StatusBadGateway, paused(t.id)
	case errors.As(err, &closed):
		e.Code, e.Port, e.Message = http.StatusBadGateway, int(t.port), "The sandbox is running but port is not open"
		var body struct{ Code, Message string }
		if json.Unmarshal(closed.Body, &body) == nil && body.Code != connect.CodeUnavailable.String() {
			e.Port, e.Message = 0, notFound(t.id, errors.New(body.Message))
		}
	}
	writeJSON(w, e.Code, e)
}

// notFound has the words by which clients know that a sandbox is gone.
func notFound(id sandbox.ID, why error) string {
	return fmt.Sprintf("sandbox %s was not found: %s", id, message(why))
}

// wordPaused is the finer code of what a paused sandbox, which requests do not wake, refuses.
const wordPaused = "paused"

// paused says what to do about it.
func paused(id sandbox.ID) string {
	return fmt.Sprintf("sandbox %s is paused, and was created with auto-resume off: connect to it to resume it", id)
}

// rpcError turns an error into one of the two services.
func rpcError(id sandbox.ID, err error) error {
	if err == nil {
		return nil
	}
	var s *statusError
	switch {
	case errors.As(err, &s):
		code := connect.CodeInvalidArgument
		if s.status == http.StatusNotFound {
			code = connect.CodeNotFound
		}
		return connect.NewError(code, errors.New(s.message))
	case gone(err):
		return connect.NewError(connect.CodeUnavailable, errors.New(notFound(id, err)))
	case word(err) == wordPaused:
		return connect.NewError(connect.CodeUnavailable, errors.New(paused(id)))
	case word(err) == "no_such_user":
		return connect.NewError(connect.CodeUnauthenticated, errors.New(noSuchUser(message(err))))
	case word(err) == "not_a_directory", word(err) == "is_a_directory":
		return connect.NewError(connect.CodeInvalidArgument, errors.New(message(err)))
	}
	return connect.NewError(connect.CodeOf(err), errors.New(message(err)))
}

// noSuchUser has the words that clients look for, and what to do: environments that were not made through this door often
// lack the user that clients expect.
func noSuchUser(why string) string {
	return "invalid username: " + why + "; name one that the template has, or make the template with Template.build, which adds one called user"
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
