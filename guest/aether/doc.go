// Package aether is the edge's end of the channel to a sandbox's dsec-init: commands, sessions, files and
// ports as Go calls over guest/wire. It keeps no record; the edge does.
//
// # Life of a connection
//
// Open says hello with the edge's epoch; Claim, once in a shell's life, gives it its environment; Serve starts
// the one reader. From then on the Handler hears of output, exits and the end of the connection:
//
//	conn, err := aether.Open(ctx, nc, epoch)
//	err = conn.Claim(ctx, &wire.Claim{Hostname: "box"}, root)
//	conn.Serve(handler)
//	started, err := conn.Start(ctx, &wire.Start{ID: "c1", Shell: "echo hello"}, group.Files())
//	// handler.Output("c1", 0, wire.Stdout, "hello\n"); conn.Ack("c1", 6)
//	// handler.Exited("c1", ...); conn.Release("c1")
//
// A successor of a dead edge opens with a greater epoch, asks List, and calls Resume for each command with the
// offset up to which it has the output.
//
// # Trust
//
// What dsec-init sends is hostile input: every frame is bounded, every window is enforced, and a frame that breaks
// the protocol ends the connection. Memory held for one connection is bounded by its streams' windows (256 KiB
// each) and one frame.
//
// # Waiting
//
// Calls end with their context. A frame that cannot be written within WriteLimit ends the connection, since
// dsec-init always reads. Streams (OpenRead, OpenTar, OpenWrite, Unpack) live no longer than the context
// that opened them; a connection of DialPort lives until it is closed.
package aether
