package kernel

import (
	"bufio"
	"io"
	"strings"
)

// endOfChannel is the line after which nothing follows.
const endOfChannel = Marker + "end of channel"

// maxLine bounds a line of the channel, bytes; longer ones are cut into several.
const maxLine = 64 << 10

// lines calls tell for each line until the end.
func lines(r io.Reader, tell func(string)) {
	b := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := b.ReadSlice('\n')
		s := strings.TrimRight(string(line), "\r\n")
		if s == endOfChannel {
			return
		}
		if len(line) > 0 {
			tell(strings.TrimPrefix(s, "\x16")) // what test2json looks for
		}
		if err != nil && err != bufio.ErrBufferFull {
			return
		}
	}
}
