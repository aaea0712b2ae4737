package importer

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// codes maps the sentinel kinds to wire codes and HTTP statuses, one to one.
var codes = []struct {
	kind   error
	code   connect.Code
	status int
}{
	{context.Canceled, connect.CodeCanceled, 499},
	{sandbox.ErrInvalid, connect.CodeInvalidArgument, http.StatusBadRequest},
	{sandbox.ErrNotFound, connect.CodeNotFound, http.StatusNotFound},
	{sandbox.ErrAlreadyExists, connect.CodeAlreadyExists, http.StatusConflict},
	{sandbox.ErrConflict, connect.CodeAborted, http.StatusConflict},
	{sandbox.ErrFailedPrecondition, connect.CodeFailedPrecondition, http.StatusBadRequest},
	{sandbox.ErrExhausted, connect.CodeResourceExhausted, http.StatusTooManyRequests},
	{sandbox.ErrPermission, connect.CodePermissionDenied, http.StatusForbidden},
	{sandbox.ErrUnauthenticated, connect.CodeUnauthenticated, http.StatusUnauthorized},
	{sandbox.ErrUnavailable, connect.CodeUnavailable, http.StatusServiceUnavailable},
	{sandbox.ErrUnsupported, connect.CodeUnimplemented, http.StatusNotImplemented},
	{sandbox.ErrDeadline, connect.CodeDeadlineExceeded, http.StatusGatewayTimeout},
	{context.DeadlineExceeded, connect.CodeDeadlineExceeded, http.StatusGatewayTimeout},
}

func code(err error) connect.Code {
	for _, c := range codes {
		if errors.Is(err, c.kind) {
			return c.code
		}
	}
	return connect.CodeInternal
}

func status(code connect.Code) int {
	for _, c := range codes {
		if c.code == code {
			return c.status
		}
	}
	return http.StatusInternalServerError
}

func importError(err error) *dsecv1.ImportError {
	return &dsecv1.ImportError{Code: code(err).String(), Message: err.Error()}
}
