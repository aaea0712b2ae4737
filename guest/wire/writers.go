package wire

import "slices"

// MaxWriters is how many writers of one command's input are remembered: the ones that wrote last.
const MaxWriters = 16

// Writers tells, for the input of one command, how far each writer has come, so that what is sent again after a
// broken connection is taken once. The zero value is ready.
type Writers struct {
	list  []writer // the one that wrote last is last
	ended string   // the writer that ended the input
}

type writer struct {
	name string
	end  int64 // offset after the last byte that was taken
}

// Fresh returns the part of an Input that was not taken before, and whether that is nothing at all: then it needs an
// answer and no more. An Input without a writer is always fresh. Error: CodeInvalid when bytes before it are missing.
func (w *Writers) Fresh(m *Input) (data []byte, repeated bool, err *Error) {
	if m.Writer == "" {
		return m.Data, false, nil
	}
	end := w.end(m.Writer)
	if m.Offset > end {
		return nil, false, &Error{Code: CodeInvalid, Message: "input is missing: what this writer sent before did not arrive, or is too long ago"}
	}
	data = m.Data[min(end-m.Offset, int64(len(m.Data))):]
	repeated = len(data) == 0 && (len(m.Data) > 0 || m.EOF) && (!m.EOF || w.ended == m.Writer)
	return data, repeated, nil
}

// Took notes that an Input was taken.
func (w *Writers) Took(m *Input) {
	if m.Writer == "" {
		return
	}
	end := max(w.end(m.Writer), m.Offset+int64(len(m.Data)))
	if i := w.find(m.Writer); i >= 0 {
		w.list = slices.Delete(w.list, i, i+1)
	} else if len(w.list) == MaxWriters {
		w.list = slices.Delete(w.list, 0, 1)
	}
	w.list = append(w.list, writer{m.Writer, end})
	if m.EOF {
		w.ended = m.Writer
	}
}

func (w *Writers) find(name string) int {
	return slices.IndexFunc(w.list, func(x writer) bool { return x.name == name })
}

func (w *Writers) end(name string) int64 {
	if i := w.find(name); i >= 0 {
		return w.list[i].end
	}
	return 0
}
