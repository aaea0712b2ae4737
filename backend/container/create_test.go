package container

import (
	"errors"
	"testing"

	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/sandbox"
)

// What an environment cannot be is its maker's to mend; what the platform could not do is not.
func TestCreateFailureBlame(t *testing.T) {
	for code, user := range map[wire.Code]bool{wire.CodeInvalid: true, wire.CodeNoUser: true, wire.CodeInternal: false} {
		err := createFailure(t.Context(), &wire.Error{Code: code, Message: "x"})
		var f *sandbox.Failure
		if errors.Is(err, sandbox.ErrInvalid) != user || errors.As(err, &f) == user {
			t.Errorf("code %d: %v", code, err)
		}
	}
}
