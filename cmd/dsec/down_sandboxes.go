package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
)

const (
	// stoppers stop sandboxes at once.
	stoppers = 16
	// edgePatience is how long an edge that is being started again may take to answer, and edgePause how often it is asked.
	edgePatience = 20 * time.Second
	edgePause    = 50 * time.Millisecond
)

// edgeHTTP reaches the node's edge through its own socket. Whoever may open that needs no API key, so that a node can
// be ended, and looked at, when no key is good. Use it with edgeURL and patient.
func edgeHTTP(d stateDir) *http.Client {
	dialer := &net.Dialer{Timeout: 2 * time.Second}
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", d.socket("edge"))
		},
		MaxIdleConnsPerHost: stoppers,
		DisableCompression:  true,
	}}
}

const edgeURL = "http://edge"

// patient asks again while the edge is not there. Only for calls that do the same twice as once.
func patient(patience time.Duration) connect.ClientOption {
	return connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			for end := time.Now().Add(patience); ; {
				resp, err := next(ctx, req)
				passes := err != nil && (!connect.IsWireError(err) || connect.CodeOf(err) == connect.CodeUnavailable)
				if !passes || ctx.Err() != nil || time.Now().After(end) {
					return resp, err
				}
				select {
				case <-ctx.Done():
					return resp, err
				case <-time.After(edgePause):
				}
			}
		}
	}))
}

// stopAllSandboxes stops every sandbox of the node. problems are those that could not be stopped.
func stopAllSandboxes(ctx context.Context, d stateDir) (stopped, problems []string) {
	hc := edgeHTTP(d)
	defer hc.CloseIdleConnections()
	c := dsecv1connect.NewSandboxServiceClient(hc, edgeURL, patient(edgePatience))
	boxes, err := listAll(ctx, c, nil, false)
	if err != nil {
		return nil, []string{"sandboxes could not be listed, and were not stopped: the edge does not answer: " + message(err)}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, stoppers)
	for _, b := range boxes {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			_, err := c.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: b.GetId()})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				problems = append(problems, fmt.Sprintf("sandbox %s: %s", b.GetId(), message(err)))
				return
			}
			stopped = append(stopped, b.GetId())
		})
	}
	wg.Wait()
	return stopped, problems
}
