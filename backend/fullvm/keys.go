package fullvm

import (
	"fmt"
	"strings"

	"github.com/opendsec/dsec/sandbox"
)

// named are the keys that have names of their own here; others are called as QEMU calls them.
var named = map[string]string{
	"enter": "ret", "return": "ret", "escape": "esc", "control": "ctrl", "del": "delete", "ins": "insert", "pageup": "pgup",
	"pagedown": "pgdn", "space": "spc", "super": "meta_l", "win": "meta_l", "cmd": "meta_l", "altgr": "alt_r", "period": "dot",
	"equals": "equal", "capslock": "caps_lock", "print": "print", "printscreen": "print", "quote": "apostrophe", "backtick": "grave_accent", "grave": "grave_accent",
	"leftbracket": "bracket_left", "rightbracket": "bracket_right", "numlock": "num_lock", "scrolllock": "scroll_lock",
}

// known are QEMU's names of keys.
var known = func() map[string]bool {
	m := map[string]bool{}
	for _, k := range strings.Fields(`shift shift_r alt alt_r ctrl ctrl_r meta_l meta_r menu esc minus equal backspace tab
		bracket_left bracket_right ret semicolon apostrophe grave_accent backslash comma dot slash asterisk spc caps_lock
		num_lock scroll_lock less sysrq print pause home pgup pgdn end left up down right insert delete power sleep wake
		kp_divide kp_multiply kp_subtract kp_add kp_enter kp_decimal kp_0 kp_1 kp_2 kp_3 kp_4 kp_5 kp_6 kp_7 kp_8 kp_9
		volumeup volumedown audiomute`) {
		m[k] = true
	}
	for c := 'a'; c <= 'z'; c++ {
		m[string(c)] = true
	}
	for c := '0'; c <= '9'; c++ {
		m[string(c)] = true
	}
	for n := 1; n <= 12; n++ {
		m[fmt.Sprintf("f%d", n)] = true
	}
	return m
}()

// keyOf finds the key of a name. Error: sandbox.ErrInvalid.
func keyOf(name string) (string, error) {
	k := strings.ReplaceAll(strings.ToLower(name), "-", "_")
	if n, ok := named[strings.ReplaceAll(k, "_", "")]; ok {
		k = n
	}
	if !known[k] && len(name) == 1 {
		if s, ok := layout[rune(name[0])]; ok && !s.shift {
			k = s.key
		}
	}
	if !known[k] {
		return "", fmt.Errorf("key %.40q: %w: want names like ctrl, alt, shift, super, enter, tab, esc, left, pgup, delete, f1, a, 7, minus", name, sandbox.ErrInvalid)
	}
	return k, nil
}

// stroke is what types one character.
type stroke struct {
	key   string
	shift bool
}

// layout is a keyboard of layout en-us.
var layout = func() map[rune]stroke {
	m := map[rune]stroke{'\n': {"ret", false}, '\t': {"tab", false}, ' ': {"spc", false}}
	for c := 'a'; c <= 'z'; c++ {
		m[c] = stroke{string(c), false}
		m[c-'a'+'A'] = stroke{string(c), true}
	}
	for n, c := range ")!@#$%^&*(" {
		m[rune('0'+n)] = stroke{string(rune('0' + n)), false}
		m[c] = stroke{string(rune('0' + n)), true}
	}
	for _, p := range []struct{ plain, shifted, key string }{
		{"-", "_", "minus"}, {"=", "+", "equal"}, {"[", "{", "bracket_left"}, {"]", "}", "bracket_right"}, {";", ":", "semicolon"},
		{"'", "\"", "apostrophe"}, {"`", "~", "grave_accent"}, {"\\", "|", "backslash"}, {",", "<", "comma"}, {".", ">", "dot"}, {"/", "?", "slash"},
	} {
		m[rune(p.plain[0])] = stroke{p.key, false}
		m[rune(p.shifted[0])] = stroke{p.key, true}
	}
	return m
}()

// strokes are what types a text. Error: sandbox.ErrInvalid for a character that the layout lacks.
func strokes(text string) ([]stroke, error) {
	var out []stroke
	for at, c := range text {
		s, ok := layout[c]
		if !ok {
			return nil, fmt.Errorf("text: %w: character %q at byte %d is not on a keyboard of layout en-us; nothing was typed", sandbox.ErrInvalid, c, at)
		}
		out = append(out, s)
	}
	return out, nil
}
