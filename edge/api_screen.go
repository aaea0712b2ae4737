package edge

import (
	"context"
	"fmt"
	"net/http"
	"unicode/utf8"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/sandbox"
)

// Bounds of what is done to a screen at once.
const (
	maxTyped    = 4096 // characters
	maxChord    = 8
	maxClicks   = 10
	maxScroll   = 100
	maxHold     = 10.0 // seconds
	maxInterval = 1.0
)

// screenAPI serves ScreenService.
type screenAPI struct{ e *Edge }

var _ dsecv1connect.ScreenServiceHandler = (*screenAPI)(nil)

// screen enters a sandbox that has a screen.
func (e *Edge) screen(ctx context.Context, id string) (b *box, s sandbox.Screen, leave func(), err error) {
	if b, leave, err = e.enter(ctx, id); err != nil {
		return nil, nil, nil, err
	}
	if !b.backend.Capabilities().Screen {
		leave()
		return nil, nil, nil, fmt.Errorf("screen of sandbox %s: %w: it is a %s, which has none (--backend fullvm has)", id, sandbox.ErrUnsupported, b.backend.Name())
	}
	b.mu.Lock()
	s, ok := b.inst.(sandbox.Screen)
	b.mu.Unlock()
	if !ok { // it is being recovered, or ends
		leave()
		return nil, nil, nil, fmt.Errorf("sandbox %s cannot be reached at the moment, try again: %w", id, sandbox.ErrUnavailable)
	}
	return b, s, leave, nil
}

// do runs f on a sandbox's screen.
func (a *screenAPI) do(ctx context.Context, id string, f func(s sandbox.Screen) error) error {
	b, s, leave, err := a.e.screen(ctx, id)
	if err != nil {
		return wireError(err)
	}
	defer leave()
	if err := f(s); err != nil {
		return wireError(fmt.Errorf("screen of sandbox %s: %w", b.id, err))
	}
	return nil
}

func (a *screenAPI) GetScreen(ctx context.Context, req *dsecv1.GetScreenRequest) (*dsecv1.GetScreenResponse, error) {
	out := &dsecv1.GetScreenResponse{}
	err := a.do(ctx, req.SandboxId, func(s sandbox.Screen) error {
		_, w, h, err := s.Picture(ctx)
		if err != nil {
			return err
		}
		out.Width, out.Height = int32(w), int32(h)
		out.Text, err = s.ScreenText(ctx)
		return err
	})
	return out, err
}

func (a *screenAPI) TakeScreenshot(ctx context.Context, req *dsecv1.TakeScreenshotRequest) (*dsecv1.TakeScreenshotResponse, error) {
	out := &dsecv1.TakeScreenshotResponse{}
	err := a.do(ctx, req.SandboxId, func(s sandbox.Screen) error {
		png, w, h, err := s.Picture(ctx)
		out.Png, out.Width, out.Height = png, int32(w), int32(h)
		return err
	})
	return out, err
}

func (a *screenAPI) MovePointer(ctx context.Context, req *dsecv1.MovePointerRequest) (*dsecv1.MovePointerResponse, error) {
	return &dsecv1.MovePointerResponse{}, a.do(ctx, req.SandboxId, func(s sandbox.Screen) error {
		return s.Move(ctx, int(req.X), int(req.Y))
	})
}

func (a *screenAPI) ClickPointer(ctx context.Context, req *dsecv1.ClickPointerRequest) (*dsecv1.ClickPointerResponse, error) {
	return &dsecv1.ClickPointerResponse{}, a.do(ctx, req.SandboxId, func(s sandbox.Screen) error {
		count := int(max(1, req.Count))
		if req.Count < 0 || count > maxClicks {
			return invalid("%d clicks: want 1 to %d", req.Count, maxClicks)
		}
		if err := moveTo(ctx, s, req.X, req.Y); err != nil {
			return err
		}
		return s.Click(ctx, req.Button, count)
	})
}

func (a *screenAPI) ScrollPointer(ctx context.Context, req *dsecv1.ScrollPointerRequest) (*dsecv1.ScrollPointerResponse, error) {
	return &dsecv1.ScrollPointerResponse{}, a.do(ctx, req.SandboxId, func(s sandbox.Screen) error {
		if req.Steps < -maxScroll || req.Steps > maxScroll {
			return invalid("%d steps: want at most %d either way", req.Steps, maxScroll)
		}
		if err := moveTo(ctx, s, req.X, req.Y); err != nil {
			return err
		}
		return s.Scroll(ctx, int(req.Steps))
	})
}

// moveTo moves the pointer where a request says so.
func moveTo(ctx context.Context, s sandbox.Screen, x, y *int32) error {
	if x == nil && y == nil {
		return nil
	}
	if x == nil || y == nil {
		return invalid("give x and y, or neither")
	}
	return s.Move(ctx, int(*x), int(*y))
}

func (a *screenAPI) PressKeys(ctx context.Context, req *dsecv1.PressKeysRequest) (*dsecv1.PressKeysResponse, error) {
	return &dsecv1.PressKeysResponse{}, a.do(ctx, req.SandboxId, func(s sandbox.Screen) error {
		if len(req.Keys) < 1 || len(req.Keys) > maxChord {
			return invalid("%d keys: want 1 to %d", len(req.Keys), maxChord)
		}
		if !(req.HoldSeconds >= 0 && req.HoldSeconds <= maxHold) {
			return invalid("hold_seconds is %v: want 0 to %v", req.HoldSeconds, maxHold)
		}
		return s.Press(ctx, req.Keys, seconds(req.HoldSeconds))
	})
}

func (a *screenAPI) TypeText(ctx context.Context, req *dsecv1.TypeTextRequest) (*dsecv1.TypeTextResponse, error) {
	return &dsecv1.TypeTextResponse{}, a.do(ctx, req.SandboxId, func(s sandbox.Screen) error {
		if n := utf8.RuneCountInString(req.Text); n < 1 || n > maxTyped {
			return invalid("text of %d characters: want 1 to %d", n, maxTyped)
		}
		if !(req.IntervalSeconds >= 0 && req.IntervalSeconds <= maxInterval) {
			return invalid("interval_seconds is %v: want 0 to %v", req.IntervalSeconds, maxInterval)
		}
		return s.Type(ctx, req.Text, seconds(req.IntervalSeconds))
	})
}

// vnc connects the client with the screen's RFB server.
func (t *transfers) vnc(w http.ResponseWriter, r *http.Request) {
	if !wantsTunnel(w, r) {
		return
	}
	b, s, leave, err := t.e.screen(r.Context(), r.PathValue("id"))
	if err != nil {
		fail(w, err, false)
		return
	}
	defer leave()
	inside, err := s.VNC(r.Context())
	if err != nil {
		fail(w, fmt.Errorf("screen of sandbox %s: %w", b.id, err), false)
		return
	}
	t.upgrade(w, b, inside)
}
