package fake

import "strings"

// simple is one command of a script.
type simple struct {
	words []string // raw: expand resolves quotes and variables
	and   bool     // only if the one before succeeded
}

// split cuts a script into commands and raw words.
func split(text string) (list []simple) {
	var cur simple
	var word strings.Builder
	quote := byte(0)
	flushWord := func() {
		if word.Len() > 0 {
			cur.words = append(cur.words, word.String())
			word.Reset()
		}
	}
	flush := func(and bool) {
		flushWord()
		if len(cur.words) > 0 {
			list = append(list, cur)
		}
		cur = simple{and: and}
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quote != 0:
			word.WriteByte(c)
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
			word.WriteByte(c)
		case c == ' ' || c == '\t':
			if w := word.String(); w != ">" && w != ">>" { // "> file" is one word
				flushWord()
			}
		case c == ';' || c == '\n':
			flush(false)
		case c == '&' && i+1 < len(text) && text[i+1] == '&':
			i++
			flush(true)
		default:
			word.WriteByte(c)
		}
	}
	flush(false)
	return list
}

// expand resolves quotes and variables.
func (s *shell) expand(raw []string) []string {
	out := make([]string, 0, len(raw))
	for _, w := range raw {
		var b strings.Builder
		quote := byte(0)
		for i := 0; i < len(w); i++ {
			c := w[i]
			switch {
			case quote == 0 && (c == '\'' || c == '"'):
				quote = c
			case c == quote:
				quote = 0
			case c == '$' && quote != '\'':
				j := i + 1
				for j < len(w) && (w[j] == '_' || w[j] >= 'a' && w[j] <= 'z' || w[j] >= 'A' && w[j] <= 'Z' || w[j] >= '0' && w[j] <= '9') {
					j++
				}
				b.WriteString(s.env[w[i+1:j]])
				i = j - 1
				if j == i+1 && j < len(w) && w[j] == '$' {
					i = j // $$
				}
			default:
				b.WriteByte(c)
			}
		}
		out = append(out, b.String())
	}
	return out
}

var escapes = strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\0`, "\x00", `\\`, `\`, `\377`, "\xff")

func unescape(s string) string { return escapes.Replace(s) }
