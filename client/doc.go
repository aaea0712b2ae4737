// Package client is the Go SDK of DSec.
//
//	c, err := client.New(client.Options{}) // DSEC_URL and DSEC_API_KEY, or what `dsec up` wrote
//	boxes, err := c.Create(ctx, &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{
//		Environment: &dsecv1.Environment{Base: "debian"},
//	}})
//	cmd, err := c.Run(ctx, client.Run{SandboxID: boxes[0].Id, Spec: &dsecv1.CommandSpec{Shell: "make test"},
//		Output: func(o *dsecv1.Output) error { _, err := os.Stdout.Write(o.Data); return err }})
//
// The generated clients are fields of Client, for everything; methods exist where a call alone is not enough:
// Create draws an idempotency key, Run attaches again where a broken stream left off, files and archives stream,
// Dial reaches a port.
//
// Calls are tried again only where that is safe: when nothing was sent, or when asking twice does the same as
// asking once (reads, stops, and everything that carries an operation id or idempotency key). A stream that ends
// without the command's end is never a success.
package client
