package files

import (
	"io"
	"strconv"
	"strings"

	"github.com/opendsec/dsec/guest/wire"
)

// A tar archive is a row of members: a header of one block, then the content, padded to blocks. What does not
// fit into the header's fields stands in a member of its own before it (POSIX pax; on reading, GNU's long names
// too). This is all of tar that is spoken here.
const block = 512

// Types of members.
const (
	typeFile    = '0'
	typeLink    = '1'
	typeSymlink = '2'
	typeDir     = '5'
	typeFIFO    = '6'
	typePax     = 'x'
	typeGlobal  = 'g'
	typeGNUName = 'L'
	typeGNULink = 'K'
)

// member is one header.
type member struct {
	name, link string
	kind       byte
	mode       uint32
	uid, gid   uint32
	size       int64
	mtime      int64 // seconds
	nsec       int64
}

// appendHeader appends the member's header, with a pax header before it where needed.
func (m *member) appendHeader(b []byte) []byte {
	var pax []byte
	name, link := m.name, m.link
	if len(name) > 100 {
		pax = appendPax(pax, "path", name)
		name = strings.TrimRight(name[:100], "/") // a slash at the end would make it a directory
	}
	if len(link) > 100 {
		pax = appendPax(pax, "linkpath", link)
		link = link[:100]
	}
	if m.size > 0o77777777777 {
		pax = appendPax(pax, "size", strconv.FormatInt(m.size, 10))
	}
	if m.uid > 0o7777777 {
		pax = appendPax(pax, "uid", strconv.FormatUint(uint64(m.uid), 10))
	}
	if m.gid > 0o7777777 {
		pax = appendPax(pax, "gid", strconv.FormatUint(uint64(m.gid), 10))
	}
	if m.nsec != 0 || m.mtime < 0 || m.mtime > 0o77777777777 {
		pax = appendPax(pax, "mtime", paxTime(m.mtime, m.nsec))
	}
	if pax != nil {
		x := member{name: "pax", kind: typePax, mode: 0o644, size: int64(len(pax))}
		b = x.appendBlock(b, "pax", "")
		b = append(b, pax...)
		b = append(b, zeros[:pad(int64(len(pax)))]...)
	}
	return m.appendBlock(b, name, link)
}

var zeros [block]byte

func pad(size int64) int64 { return -size & (block - 1) }

func (m *member) appendBlock(b []byte, name, link string) []byte {
	at := len(b)
	b = append(b, zeros[:]...)
	h := b[at:]
	copy(h[0:100], name)
	octal(h[100:108], int64(m.mode))
	octal(h[108:116], int64(m.uid))
	octal(h[116:124], int64(m.gid))
	octal(h[124:136], m.size)
	octal(h[136:148], m.mtime)
	copy(h[148:156], "        ")
	h[156] = m.kind
	copy(h[157:257], link)
	copy(h[257:], "ustar\x0000")
	var sum int64
	for _, c := range h {
		sum += int64(c)
	}
	octal(h[148:155], sum)
	return b
}

// octal fills a field with digits and a NUL; what does not fit is in the pax header, and 0 here.
func octal(field []byte, v int64) {
	s := strconv.FormatInt(v, 8)
	if v < 0 || len(s) > len(field)-1 {
		s = "0"
	}
	n := len(field) - 1
	for k := range n {
		field[k] = '0'
	}
	copy(field[n-len(s):n], s)
	field[n] = 0
}

// appendPax appends a record "length key=value\n", whose length counts itself.
func appendPax(b []byte, key, value string) []byte {
	n := len(key) + len(value) + 3
	total := n + len(strconv.Itoa(n))
	total = n + len(strconv.Itoa(total))
	b = strconv.AppendInt(b, int64(total), 10)
	b = append(b, ' ')
	b = append(b, key...)
	b = append(b, '=')
	b = append(b, value...)
	return append(b, '\n')
}

func paxTime(sec, nsec int64) string {
	if nsec == 0 {
		return strconv.FormatInt(sec, 10)
	}
	sign := ""
	if sec < 0 { // -1.5 is the second -2 and half of one
		sec, nsec, sign = -(sec + 1), 1e9-nsec, "-"
	}
	frac := strconv.FormatInt(nsec+1e9, 10)[1:]
	return sign + strconv.FormatInt(sec, 10) + "." + strings.TrimRight(frac, "0")
}

// maxMeta bounds the content of a pax or long-name member, in bytes.
const maxMeta = 1 << 20

var errTar = &wire.Error{Code: wire.CodeInvalid, Message: "not a tar archive, or a damaged one"}

// next reads the header of the next member that is one; io.EOF at the end of the archive.
func next(r io.Reader) (*member, error) {
	var h [block]byte
	var over map[string]string
	gnuName, gnuLink := "", ""
	for range 64 {
		if _, err := io.ReadFull(r, h[:]); err != nil {
			if err == io.EOF && over == nil {
				return nil, io.EOF // without the two blocks of zeros: tolerated
			}
			return nil, truncated(err)
		}
		if h == zeros {
			return nil, io.EOF
		}
		m, ok := parseBlock(&h)
		if !ok {
			return nil, errTar
		}
		switch m.kind {
		case typePax, typeGlobal, typeGNUName, typeGNULink:
			if m.size < 0 || m.size > maxMeta {
				return nil, errTar
			}
			text := make([]byte, m.size)
			if _, err := io.ReadFull(r, text); err != nil {
				return nil, truncated(err)
			}
			if err := skip(r, pad(m.size)); err != nil {
				return nil, err
			}
			switch m.kind {
			case typePax:
				if over, ok = parsePax(string(text)); !ok {
					return nil, errTar
				}
			case typeGNUName:
				gnuName = strings.TrimRight(string(text), "\x00")
			case typeGNULink:
				gnuLink = strings.TrimRight(string(text), "\x00")
			}
			continue
		}
		if gnuName != "" {
			m.name = gnuName
		}
		if gnuLink != "" {
			m.link = gnuLink
		}
		if !m.override(over) || m.size < 0 {
			return nil, errTar
		}
		if m.kind == typeFile && strings.HasSuffix(m.name, "/") {
			m.kind = typeDir // as before POSIX
		}
		return m, nil
	}
	return nil, errTar
}

func truncated(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return &wire.Error{Code: wire.CodeInvalid, Message: "the tar archive ends too early"}
	}
	return err
}

func skip(r io.Reader, n int64) error {
	m, err := io.CopyN(io.Discard, r, n)
	if err != nil && m < n {
		return truncated(err)
	}
	return nil
}

func parseBlock(h *[block]byte) (*member, bool) {
	var sum, signed int64
	for k, c := range h {
		if k >= 148 && k < 156 {
			c = ' '
		}
		sum += int64(c)
		signed += int64(int8(c))
	}
	want, ok := number(h[148:156])
	if !ok || want != sum && want != signed {
		return nil, false
	}
	m := &member{name: text(h[0:100]), link: text(h[157:257]), kind: h[156]}
	if m.kind == 0 {
		m.kind = typeFile
	}
	mode, ok1 := number(h[100:108])
	uid, ok2 := number(h[108:116])
	gid, ok3 := number(h[116:124])
	size, ok4 := number(h[124:136])
	mtime, ok5 := number(h[136:148])
	m.mode, m.uid, m.gid, m.size, m.mtime = uint32(mode), uint32(uid), uint32(gid), size, mtime
	if prefix := text(h[345:500]); string(h[257:263]) == "ustar\x00" && prefix != "" {
		m.name = prefix + "/" + m.name
	}
	return m, ok1 && ok2 && ok3 && ok4 && ok5
}

func text(b []byte) string {
	s := string(b)
	if k := strings.IndexByte(s, 0); k >= 0 {
		s = s[:k]
	}
	return s
}

// number reads an octal field, or GNU's binary one.
func number(b []byte) (int64, bool) {
	if b[0]&0x80 != 0 {
		v := int64(b[0] & 0x3f)
		if b[0]&0x40 != 0 {
			v -= 0x40
		}
		for _, c := range b[1:] {
			if v > 1<<54 || v < -1<<54 {
				return 0, false
			}
			v = v<<8 | int64(c)
		}
		return v, true
	}
	s := strings.Trim(text(b), " ")
	if s == "" {
		return 0, true
	}
	v, err := strconv.ParseInt(s, 8, 64)
	return v, err == nil
}

// parsePax reads the records that are used here.
func parsePax(s string) (map[string]string, bool) {
	over := make(map[string]string)
	for s != "" {
		digits, _, ok := strings.Cut(s, " ")
		n, err := strconv.Atoi(digits)
		if !ok || err != nil || n <= len(digits)+1 || n > len(s) || s[n-1] != '\n' {
			return nil, false
		}
		key, value, ok := strings.Cut(s[len(digits)+1:n-1], "=")
		if !ok {
			return nil, false
		}
		switch key {
		case "path", "linkpath", "size", "mtime", "uid", "gid":
			over[key] = value
		}
		s = s[n:]
	}
	return over, true
}

// override applies a pax header.
func (m *member) override(over map[string]string) bool {
	for key, v := range over {
		var err error
		var n uint64
		switch key {
		case "path":
			m.name = v
		case "linkpath":
			m.link = v
		case "size":
			m.size, err = strconv.ParseInt(v, 10, 64)
		case "uid":
			n, err = strconv.ParseUint(v, 10, 32)
			m.uid = uint32(n)
		case "gid":
			n, err = strconv.ParseUint(v, 10, 32)
			m.gid = uint32(n)
		case "mtime":
			whole, frac, _ := strings.Cut(v, ".")
			if m.mtime, err = strconv.ParseInt(whole, 10, 64); err == nil && frac != "" {
				m.nsec, err = strconv.ParseInt((frac + "000000000")[:9], 10, 64)
				if strings.HasPrefix(whole, "-") && m.nsec > 0 {
					m.mtime, m.nsec = m.mtime-1, 1e9-m.nsec
				}
			}
		}
		if err != nil {
			return false
		}
	}
	return true
}
