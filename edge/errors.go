package edge

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/sandbox"
)

// kinds maps the sentinel errors to wire codes, one to one.
var kinds = []struct {
	err  error
	code connect.Code
}{
	{sandbox.ErrInvalid, connect.CodeInvalidArgument},
	{sandbox.ErrNotFound, connect.CodeNotFound},
	{record.ErrUnknownCommand, connect.CodeNotFound},
	{sandbox.ErrAlreadyExists, connect.CodeAlreadyExists},
	{sandbox.ErrConflict, connect.CodeAborted},
	{sandbox.ErrFailedPrecondition, connect.CodeFailedPrecondition},
	{sandbox.ErrExhausted, connect.CodeResourceExhausted},
	{sandbox.ErrPermission, connect.CodePermissionDenied},
	{sandbox.ErrUnauthenticated, connect.CodeUnauthenticated},
	{sandbox.ErrUnavailable, connect.CodeUnavailable},
	{aether.ErrClosed, connect.CodeUnavailable},
	{sandbox.ErrUnsupported, connect.CodeUnimplemented},
	{sandbox.ErrDeadline, connect.CodeDeadlineExceeded},
	{context.DeadlineExceeded, connect.CodeDeadlineExceeded},
	{context.Canceled, connect.CodeCanceled},
}

// guestCodes maps what dsec-init refuses to wire codes, and to the word by which an SDK tells them apart.
var guestCodes = map[wire.Code]struct {
	code connect.Code
	word string
}{
	wire.CodeInternal:      {connect.CodeInternal, "internal"},
	wire.CodeInvalid:       {connect.CodeInvalidArgument, "invalid_argument"},
	wire.CodeNotFound:      {connect.CodeNotFound, "not_found"},
	wire.CodeExists:        {connect.CodeAlreadyExists, "already_exists"},
	wire.CodePermission:    {connect.CodePermissionDenied, "permission_denied"},
	wire.CodeNotDirectory:  {connect.CodeFailedPrecondition, "not_a_directory"},
	wire.CodeIsDirectory:   {connect.CodeFailedPrecondition, "is_a_directory"},
	wire.CodeNotEmpty:      {connect.CodeFailedPrecondition, "directory_not_empty"},
	wire.CodeNoSpace:       {connect.CodeResourceExhausted, "no_space"},
	wire.CodeExhausted:     {connect.CodeResourceExhausted, "resource_exhausted"},
	wire.CodeNoUser:        {connect.CodeNotFound, "no_such_user"},
	wire.CodeNoCwd:         {connect.CodeNotFound, "no_such_directory"},
	wire.CodeNotExecutable: {connect.CodeFailedPrecondition, "not_executable"},
	wire.CodeNoProgram:     {connect.CodeNotFound, "no_such_program"},
	wire.CodeSessionEnded:  {connect.CodeFailedPrecondition, "session_ended"},
	wire.CodeRefused:       {connect.CodeUnavailable, "connection_refused"},
	wire.CodeClosed:        {connect.CodeUnavailable, "channel_closed"},
	wire.CodeWrongState:    {connect.CodeFailedPrecondition, "wrong_state"},
}

// wireError is the one place where errors become what the API reports.
func wireError(err error) error {
	if err == nil {
		return nil
	}
	if done, ok := err.(*connect.Error); ok {
		return done
	}
	out := connect.NewError(codeOf(err), err)
	var below *connect.Error
	if errors.As(err, &below) {
		for _, d := range below.Details() {
			out.AddDetail(d)
		}
	}
	var failure *sandbox.Failure
	var guest *wire.Error
	switch {
	case errors.As(err, &failure):
		if d, err := connect.NewErrorDetail(failureProto(failure)); err == nil {
			out.AddDetail(d)
		}
	case errors.Is(err, record.ErrUnknownCommand): // the sandbox is known, which a bare not_found does not tell
		if d, derr := connect.NewErrorDetail(&dsecv1.Error{Code: "no_such_command", Message: err.Error()}); derr == nil {
			out.AddDetail(d)
		}
	case errors.Is(err, errPaused):
		if d, derr := connect.NewErrorDetail(&dsecv1.Error{Code: "paused", Message: err.Error()}); derr == nil {
			out.AddDetail(d)
		}
	case errors.As(err, &guest):
		if d, err := connect.NewErrorDetail(&dsecv1.Error{Code: guestCodes[guest.Code].word, Message: guest.Message}); err == nil {
			out.AddDetail(d)
		}
	}
	return out
}

func codeOf(err error) connect.Code {
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.code
		}
	}
	var guest *wire.Error
	if errors.As(err, &guest) {
		if c, ok := guestCodes[guest.Code]; ok {
			return c.code
		}
	}
	var below *connect.Error
	if errors.As(err, &below) { // of another process, and wrapped without a kind of ours
		return below.Code()
	}
	var failure *sandbox.Failure
	if errors.As(err, &failure) {
		switch {
		case failure.Kind == sandbox.KindCreateDeadline:
			return connect.CodeDeadlineExceeded
		case failure.Kind == sandbox.KindImageUnavailable:
			return connect.CodeNotFound
		case failure.Kind == sandbox.KindInternal:
			return connect.CodeInternal
		case failure.Blame == sandbox.BlameInfra:
			return connect.CodeUnavailable
		}
		return connect.CodeFailedPrecondition
	}
	return connect.CodeInternal
}

// itemError is an error as part of a successful answer.
func itemError(err error) *dsecv1.Error {
	out := &dsecv1.Error{Code: codeOf(err).String(), Message: err.Error()}
	var failure *sandbox.Failure
	if errors.As(err, &failure) {
		out.Failure = failureProto(failure)
	}
	return out
}

// httpStatus is the status of the plain HTTP endpoints, as Connect maps codes.
func httpStatus(code connect.Code) int {
	switch code {
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		return http.StatusBadRequest
	case connect.CodeFailedPrecondition:
		return http.StatusPreconditionFailed
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodeAlreadyExists, connect.CodeAborted:
		return http.StatusConflict
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeUnauthenticated:
		return http.StatusUnauthorized
	case connect.CodeResourceExhausted:
		return http.StatusTooManyRequests
	case connect.CodeUnimplemented:
		return http.StatusNotImplemented
	case connect.CodeUnavailable:
		return http.StatusServiceUnavailable
	case connect.CodeDeadlineExceeded:
		return http.StatusGatewayTimeout
	case connect.CodeCanceled:
		return 499
	}
	return http.StatusInternalServerError
}
