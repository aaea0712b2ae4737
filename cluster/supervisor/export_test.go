package supervisor_test

import "github.com/opendsec/dsec/internal/linux"

var openPID = linux.OpenPID
