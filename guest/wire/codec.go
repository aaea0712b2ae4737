package wire

import "encoding/binary"

// appendUint, appendInt, appendString, ... append one value.
func appendUint(b []byte, v uint64) []byte { return binary.AppendUvarint(b, v) }
func appendInt(b []byte, v int64) []byte   { return binary.AppendVarint(b, v) }

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendStrings(b []byte, l []string) []byte {
	b = appendUint(b, uint64(len(l)))
	for _, s := range l {
		b = appendString(b, s)
	}
	return b
}

// reader takes values off a payload. The first malformed value makes all later ones zero and err true, so
// that decoders need one check at their end.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int32() int32 {
	v := r.int()
	if v != int64(int32(v)) {
		r.fail()
		return 0
	}
	return int32(v)
}

func (r *reader) uint32() uint32 {
	v := r.uint()
	if v != uint64(uint32(v)) {
		r.fail()
		return 0
	}
	return uint32(v)
}

func (r *reader) uint16() uint16 {
	v := r.uint()
	if v != uint64(uint16(v)) {
		r.fail()
		return 0
	}
	return uint16(v)
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) bool() bool {
	v := r.byte()
	if v > 1 {
		r.fail()
	}
	return v == 1
}

// bytes returns a slice of the payload itself.
func (r *reader) bytes(max int) []byte {
	n := r.uint()
	if n > uint64(len(r.b)) || n > uint64(max) {
		r.fail()
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) string(max int) string { return string(r.bytes(max)) }
func (r *reader) name() string          { return r.string(MaxName) }
func (r *reader) path() string          { return r.string(MaxPath) }

func (r *reader) strings() []string {
	n := r.uint()
	if n > uint64(len(r.b)) || n > MaxStrings {
		r.fail()
		return nil
	}
	if n == 0 {
		return nil
	}
	l := make([]string, 0, n)
	for ; n > 0 && !r.bad; n-- {
		l = append(l, r.string(MaxFrame))
	}
	return l
}

func (r *reader) fail() { r.bad, r.b = true, nil }

// end reports whether the payload was well formed and used up.
func (r *reader) end(what string) error {
	if r.bad || len(r.b) != 0 {
		return errMalformed(what)
	}
	return nil
}
