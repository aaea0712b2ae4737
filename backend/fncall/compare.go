package fncall

import "bytes"

// Comparison says when output is right.
type Comparison int

// The comparisons.
const (
	Trimmed Comparison = iota // white space at the ends of lines and empty lines at the end do not count
	Exact                     // byte for byte
	Tokens                    // only the words count
)

// Equal tells whether got is right.
func (c Comparison) Equal(got, want []byte) bool {
	switch c {
	case Exact:
		return bytes.Equal(got, want)
	case Tokens:
		return sameTokens(got, want)
	}
	return sameLines(got, want)
}

// space is white space in any program's output.
func space(c byte) bool { return c == ' ' || (c >= '\t' && c <= '\r') }

func sameTokens(a, b []byte) bool {
	for {
		var x, y []byte
		x, a = token(a)
		y, b = token(b)
		if !bytes.Equal(x, y) {
			return false
		}
		if len(x) == 0 {
			return true
		}
	}
}

// token cuts the first word off.
func token(b []byte) (word, rest []byte) {
	for len(b) > 0 && space(b[0]) {
		b = b[1:]
	}
	n := 0
	for n < len(b) && !space(b[n]) {
		n++
	}
	return b[:n], b[n:]
}

func sameLines(a, b []byte) bool {
	a, b = trimRight(a), trimRight(b)
	for len(a) > 0 || len(b) > 0 {
		var x, y []byte
		x, a = line1(a)
		y, b = line1(b)
		if !bytes.Equal(trimRight(x), trimRight(y)) {
			return false
		}
	}
	return true
}

func line1(b []byte) (line, rest []byte) {
	if n := bytes.IndexByte(b, '\n'); n >= 0 {
		return b[:n], b[n+1:]
	}
	return b, nil
}

func trimRight(b []byte) []byte {
	for len(b) > 0 && space(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	return b
}
