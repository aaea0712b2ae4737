package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
)

func newScreen() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "screen",
		Short: "Look at the screen of a full VM, and use its keyboard and pointer",
		Long: `Screen works on sandboxes of --backend fullvm, whatever runs in them. Places are pixels of the picture, from the upper
left corner.`,
		Example: `  dsec screen shot sabcd... screen.png
  dsec screen text sabcd...
  dsec screen type sabcd... 'echo hello' && dsec screen key sabcd... enter
  dsec screen key sabcd... ctrl+alt+delete
  dsec screen click sabcd... 400 300
  dsec screen vnc sabcd... --listen 127.0.0.1:5901`,
	}
	cmd.AddCommand(newScreenShot(), newScreenText(), newScreenType(), newScreenKey(), newScreenClick(), newScreenMove(), newScreenScroll(), newScreenVNC())
	return cmd
}

func newScreenShot() *cobra.Command {
	return &cobra.Command{
		Use:   "shot ID [FILE]",
		Short: "Take a picture, PNG, into a file (- = stdout; default: ID.png)",
		Args:  rangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			r, err := c.Screens.TakeScreenshot(cmd.Context(), &dsecv1.TakeScreenshotRequest{SandboxId: args[0]})
			if err != nil {
				return c.Explain(err)
			}
			path := args[0] + ".png"
			if len(args) == 2 {
				path = args[1]
			}
			if path == "-" {
				_, err := cmd.OutOrStdout().Write(r.GetPng())
				return err
			}
			if err := os.WriteFile(path, r.GetPng(), 0o644); err != nil {
				return err
			}
			if wantJSON(cmd) {
				return printJSON(cmd.OutOrStdout(), map[string]any{"file": path, "width": r.GetWidth(), "height": r.GetHeight()})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %dx%d\n", path, r.GetWidth(), r.GetHeight())
			return err
		},
	}
}

func newScreenText() *cobra.Command {
	return &cobra.Command{
		Use:   "text ID",
		Short: "Print what a screen in text mode says",
		Args:  exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			r, err := c.Screens.GetScreen(cmd.Context(), &dsecv1.GetScreenRequest{SandboxId: args[0]})
			if err != nil {
				return c.Explain(err)
			}
			if wantJSON(cmd) {
				return printProto(cmd.OutOrStdout(), r)
			}
			if r.GetText() == "" {
				return fmt.Errorf("the screen of %s, %dx%d, is not in text mode, or says nothing: dsec screen shot", args[0], r.GetWidth(), r.GetHeight())
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), r.GetText())
			return err
		},
	}
}

func newScreenType() *cobra.Command {
	var every string
	var enter bool
	cmd := &cobra.Command{
		Use:   "type ID TEXT",
		Short: "Type a text on its keyboard (layout en-us; - = stdin)",
		Args:  exactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &dsecv1.TypeTextRequest{SandboxId: args[0], Text: args[1]}
			if args[1] == "-" {
				b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), 1<<16))
				if err != nil {
					return err
				}
				req.Text = string(b)
			}
			if enter {
				req.Text += "\n"
			}
			if every != "" {
				var err error
				if req.IntervalSeconds, err = parseSeconds(every); err != nil {
					return &exitError{2, err}
				}
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Screens.TypeText(cmd.Context(), req)
			return c.Explain(err)
		},
	}
	cmd.Flags().StringVar(&every, "every", "", "time between two keys, at least (default: 30ms)")
	cmd.Flags().BoolVar(&enter, "enter", false, "press Enter at the end")
	return cmd
}

func newScreenKey() *cobra.Command {
	var hold string
	cmd := &cobra.Command{
		Use:   "key ID KEYS...",
		Short: "Press combinations of keys, one after the other: ctrl+alt+delete, enter, f2",
		Args:  rangeArgs(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var held float64
			if hold != "" {
				var err error
				if held, err = parseSeconds(hold); err != nil {
					return &exitError{2, err}
				}
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			for _, keys := range args[1:] {
				req := &dsecv1.PressKeysRequest{SandboxId: args[0], Keys: strings.Split(keys, "+"), HoldSeconds: held}
				if _, err := c.Screens.PressKeys(cmd.Context(), req); err != nil {
					return c.Explain(err)
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&hold, "hold", "", "how long they are held down")
	return cmd
}

// parsePixels reads two numbers.
func parsePixels(args []string) (x, y int32, err error) {
	for i, to := range []*int32{&x, &y} {
		n, err := strconv.ParseInt(args[i], 10, 32)
		if err != nil || n < 0 {
			return 0, 0, &exitError{2, fmt.Errorf("place %q: want pixels, X and Y", args[i])}
		}
		*to = int32(n)
	}
	return x, y, nil
}

func newScreenClick() *cobra.Command {
	var button string
	var count int32
	cmd := &cobra.Command{
		Use:   "click ID [X Y]",
		Short: "Click, there or where the pointer is",
		Args:  rangeArgs(1, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &dsecv1.ClickPointerRequest{SandboxId: args[0], Button: button, Count: count}
			switch len(args) {
			case 2:
				return &exitError{2, fmt.Errorf("give X and Y, or neither")}
			case 3:
				x, y, err := parsePixels(args[1:])
				if err != nil {
					return err
				}
				req.X, req.Y = proto.Int32(x), proto.Int32(y)
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Screens.ClickPointer(cmd.Context(), req)
			return c.Explain(err)
		},
	}
	cmd.Flags().StringVar(&button, "button", "left", "left, middle or right")
	cmd.Flags().Int32Var(&count, "count", 1, "2 is a double click")
	return cmd
}

func newScreenMove() *cobra.Command {
	return &cobra.Command{
		Use:   "move ID X Y",
		Short: "Move the pointer",
		Args:  exactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			x, y, err := parsePixels(args[1:])
			if err != nil {
				return err
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Screens.MovePointer(cmd.Context(), &dsecv1.MovePointerRequest{SandboxId: args[0], X: x, Y: y})
			return c.Explain(err)
		},
	}
}

func newScreenScroll() *cobra.Command {
	return &cobra.Command{
		Use:   "scroll ID STEPS",
		Short: "Turn the wheel downwards; upwards by a negative number behind --",
		Args:  exactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseInt(args[1], 10, 32)
			if err != nil {
				return &exitError{2, fmt.Errorf("steps %q: want a number", args[1])}
			}
			c, err := newClient()
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Screens.ScrollPointer(cmd.Context(), &dsecv1.ScrollPointerRequest{SandboxId: args[0], Steps: int32(n)})
			return c.Explain(err)
		},
	}
}
