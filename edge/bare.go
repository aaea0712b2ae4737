package edge

import (
	"errors"

	"github.com/opendsec/dsec/sandbox"
)

// isBare tells whether an instance's answer to Connect means that it has no dsec-init.
func (b *box) isBare(err error) bool {
	return b.backend.Capabilities().NoAgent && errors.Is(err, sandbox.ErrUnsupported)
}

// watch ends the sandbox when its machine ends; where there is a channel, its end shows that.
func (b *box) watch(inst sandbox.Instance) {
	b.e.spawn(func() {
		select {
		case <-inst.Done():
			b.lost(inst, nil)
		case <-b.gone:
		case <-b.e.closing:
		}
	})
}
