package wire

// Bounds of the attributes of one file.
const (
	MaxAttrs      = 64
	MaxAttrsBytes = 8 << 10 // names and values together
)

// Attr is an extended attribute of the user's namespace; the name is without "user.". Both are raw bytes.
type Attr struct{ Name, Value string }

// appendAttrs appends a list that may be left out: as what comes last in a payload, and only where there are any. Who knows
// nothing of attributes understands payloads without them, and dsec-inits outlive edges.
func appendAttrs(b []byte, l []Attr) []byte {
	if len(l) == 0 {
		return b
	}
	b = appendUint(b, uint64(len(l)))
	for _, a := range l {
		b = appendString(appendString(b, a.Name), a.Value)
	}
	return b
}

func (r *reader) attrs() []Attr {
	if r.bad || len(r.b) == 0 {
		return nil
	}
	n := r.uint()
	if n == 0 || n > MaxAttrs {
		r.fail()
		return nil
	}
	l := make([]Attr, 0, n)
	for left := MaxAttrsBytes; n > 0 && !r.bad; n-- {
		a := Attr{Name: r.string(MaxName), Value: r.string(left)}
		if left -= len(a.Name) + len(a.Value); left < 0 {
			r.fail()
			return nil
		}
		l = append(l, a)
	}
	return l
}
