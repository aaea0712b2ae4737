package fullvm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/opendsec/dsec/sandbox"
)

// maxPicture bounds a picture, bytes: what an answer of the API holds.
const maxPicture = 15 << 20

// errNoPicture is a screen that nothing has set up.
var errNoPicture = fmt.Errorf("%w: the machine has not set up its display yet: try again", sandbox.ErrUnavailable)

// use takes the screen; the returned function gives it back.
func (i *instance) use(ctx context.Context) (func(), error) {
	select {
	case i.screen <- struct{}{}:
		return func() { <-i.screen }, nil
	case <-i.done:
		return nil, i.gone()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Picture implements sandbox.Screen.
func (i *instance) Picture(ctx context.Context) ([]byte, int, int, error) {
	release, err := i.use(ctx)
	if err != nil {
		return nil, 0, 0, err
	}
	defer release()
	return i.picture(ctx)
}

// picture takes the picture; the screen is held.
func (i *instance) picture(ctx context.Context) ([]byte, int, int, error) {
	b, err := i.dump(ctx)
	if err != nil {
		return nil, 0, 0, err
	}
	if sum(b) == i.limits.Blank {
		return nil, 0, 0, errNoPicture
	}
	c, err := png.DecodeConfig(bytes.NewReader(b))
	if err != nil {
		return nil, 0, 0, fmt.Errorf("picture of the screen: %w", err)
	}
	return b, c.Width, c.Height, nil
}

// dump has QEMU write the picture into the machine's directory, and reads it.
func (i *instance) dump(ctx context.Context) ([]byte, error) {
	if err := i.query(ctx, "screendump", map[string]any{"filename": pictureName, "format": "png"}, nil); err != nil {
		return nil, err
	}
	return i.take(pictureName, maxPicture)
}

// take reads a file that QEMU has written, and removes it.
func (i *instance) take(name string, most int64) ([]byte, error) {
	path := filepath.Join(i.d.dir(i.id), name)
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	defer os.Remove(path)
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%w: the picture has more than %d bytes", sandbox.ErrExhausted, most)
	}
	return b, err
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// noteBlank remembers what the screen shows before the machine has run.
func (i *instance) noteBlank(ctx context.Context) error {
	b, err := i.dump(ctx)
	if err != nil {
		return err
	}
	i.limits.Blank = sum(b)
	return i.d.save(&i.limits)
}

// The text that a screen in text mode shows lies in memory, as pairs of character and colour.
const (
	textAt      = 0xb8000
	textColumns = 80
	textRows    = 25
)

// ScreenText implements sandbox.Screen.
func (i *instance) ScreenText(ctx context.Context) (string, error) {
	release, err := i.use(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	_, w, h, err := i.picture(ctx)
	if errors.Is(err, errNoPicture) {
		return "", nil
	}
	if err != nil || h != 400 || w != 9*textColumns && w != 8*textColumns {
		return "", err
	}
	args := map[string]any{"val": textAt, "size": 2 * textColumns * textRows, "filename": textName}
	if err := i.query(ctx, "pmemsave", args, nil); err != nil {
		return "", err
	}
	b, err := i.take(textName, 2*textColumns*textRows)
	return decodeText(b), err
}

// decodeText reads text memory; what is no ASCII shows as a question mark.
func decodeText(b []byte) string {
	var lines []string
	for row := 0; row+2*textColumns <= len(b); row += 2 * textColumns {
		var line strings.Builder
		for at := row; at < row+2*textColumns; at += 2 {
			switch c := b[at]; {
			case c == 0:
				line.WriteByte(' ')
			case c < ' ' || c > '~':
				line.WriteByte('?')
			default:
				line.WriteByte(c)
			}
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}
