package layer

import (
	"fmt"
	"strings"

	"github.com/opendsec/dsec/sandbox"
)

// maxDamageRanges bounds how many ranges of chunks an error names.
const maxDamageRanges = 20

// DamagedChunks is the ErrDamaged, and sandbox.ErrUnavailable, of a blob of which some chunks are not what its
// description says: all of them, in order.
type DamagedChunks struct {
	Chunks []int
	Of     int // chunks of the blob
}

func (d *DamagedChunks) Error() string {
	what, whose := "chunk", "its"
	if len(d.Chunks) > 1 {
		what, whose = "chunks", "their"
	}
	return fmt.Sprintf("%s %s of %d: %s content does not have %s digest", what, ranges(d.Chunks), d.Of, whose, whose)
}

// Unwrap gives it its kinds.
func (d *DamagedChunks) Unwrap() []error { return []error{ErrDamaged, sandbox.ErrUnavailable} }

// ranges writes ascending numbers as 3, 7-9, counted from 0.
func ranges(all []int) string {
	var out []string
	for i := 0; i < len(all); {
		if len(out) == maxDamageRanges {
			out = append(out, fmt.Sprintf("and %d more", len(all)-i))
			break
		}
		end := i
		for end+1 < len(all) && all[end+1] == all[end]+1 {
			end++
		}
		if end == i {
			out = append(out, fmt.Sprint(all[i]))
		} else {
			out = append(out, fmt.Sprintf("%d-%d", all[i], all[end]))
		}
		i = end + 1
	}
	return strings.Join(out, ", ")
}

// Compare tells how a blob that was read differs from its description. Error: *DamagedChunks; ErrTruncated with
// sandbox.ErrUnavailable where it is not as long.
func (b *Blob) Compare(got *Blob) error {
	if got.ChunkSize != b.ChunkSize || got.Size > b.Size {
		return fmt.Errorf("%w: %w: its content does not have its digest", sandbox.ErrUnavailable, ErrDamaged)
	}
	if got.Size < b.Size {
		return fmt.Errorf("%w: %w: it has %d bytes, its manifest says %d", sandbox.ErrUnavailable, ErrTruncated, got.Size, b.Size)
	}
	var bad []int
	for n := range b.Chunks {
		if got.Chunks[n] != b.Chunks[n] {
			bad = append(bad, n)
		}
	}
	if len(bad) > 0 {
		return &DamagedChunks{bad, len(b.Chunks)}
	}
	return nil
}

// Damages puts what is wrong with the parts of one layer into one error; nil = nothing is. What is not damage, like a
// store that does not answer, goes before all.
func Damages(metadata, data error) error {
	switch {
	case metadata == nil:
		return data
	case data == nil:
		return metadata
	}
	return fmt.Errorf("%w; %w", metadata, data)
}
