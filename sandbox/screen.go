package sandbox

import (
	"context"
	"net"
	"time"
)

// Screen is an optional ability of an Instance: a picture, a keyboard and a pointer. Coordinates are pixels from the upper
// left corner of the picture. Calls are carried out one after the other. Errors: ErrInvalid for what is outside of the
// picture, unknown or more than is allowed; ErrUnavailable while the machine has not set up its display.
type Screen interface {
	// Picture returns the screen's picture as PNG and its size.
	Picture(ctx context.Context) (png []byte, width, height int, err error)
	// ScreenText returns what a screen in text mode says; "" in graphics.
	ScreenText(ctx context.Context) (string, error)
	// Move moves the pointer.
	Move(ctx context.Context, x, y int) error
	// Click presses and releases a button (left, middle, right) count times, where the pointer is.
	Click(ctx context.Context, button string, count int) error
	// Scroll turns the wheel, downwards; negative = upwards.
	Scroll(ctx context.Context, steps int) error
	// Press presses keys in turn, holds them, and lets go of them in the opposite order.
	Press(ctx context.Context, keys []string, hold time.Duration) error
	// Type types a text on a keyboard of layout en-us; each key takes interval at least, and the time that the machine needs
	// to take it.
	Type(ctx context.Context, text string, interval time.Duration) error
	// VNC connects to the screen in the RFB protocol.
	VNC(ctx context.Context) (net.Conn, error)
}
