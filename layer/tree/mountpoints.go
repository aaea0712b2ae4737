package tree

import (
	"fmt"

	"github.com/opendsec/dsec/layer/erofs"
)

// mountPoints are directories of every sandbox's root that the platform fills or writes to.
var mountPoints = []string{"proc", "sys", "dev", "etc"}

// CheckMountPoints refuses a tree with something else than a directory where a sandbox needs one: no sandbox could be
// made of it. Error: sandbox.ErrInvalid.
func (b *Builder) CheckMountPoints() error {
	for _, name := range mountPoints {
		n := b.model.root.children[name]
		if n == nil || n.inode.IsDir() || n.inode.IsWhiteout() {
			continue
		}
		what := "a file"
		if n.inode.Mode&erofs.TypeMask == erofs.TypeSymlink {
			what = "a symbolic link"
		}
		return fmt.Errorf("%w: /%s is %s, where every sandbox needs a directory; leave it out", errInvalid, name, what)
	}
	return nil
}
