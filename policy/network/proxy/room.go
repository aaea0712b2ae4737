package proxy

import "context"

// enter counts a connection; one too many is closed at once. Where there is no room, a sandbox that has fewer than another
// gets it from the one that has most: a few cannot keep all others out.
func (s *Server) enter(ctx context.Context, c *conn) bool {
	most := s.cfg.MaxSandbox
	if p, ok := s.cfg.Program(c.flow.Key); ok && p.Limits.Connections > 0 {
		most = min(most, int(p.Limits.Connections))
	}
	s.mu.Lock()
	state := s.state(c.flow.Key)
	why := ""
	var gives *conn
	switch {
	case ctx.Err() != nil:
		why = "the proxy stops"
	case len(state.conns) >= most:
		why = "too many connections of this sandbox"
	case len(s.conns)-s.giving >= s.cfg.MaxConns:
		if gives = s.mostSilent(len(state.conns) - state.giving + 1); gives == nil {
			why = "the node has too many connections"
		}
	}
	if why == "" {
		s.conns[c] = struct{}{}
		state.conns[c] = struct{}{}
		if len(state.conns) == 1 {
			s.having[state] = struct{}{}
			s.cfg.Busy(c.flow.Key, true)
		}
	}
	s.mu.Unlock()
	if gives != nil {
		gives.giveWay()
	}
	if why != "" {
		s.limited.Add(1)
		c.client.reset()
		s.event(Event{Flow: c.flow, Kind: Limited, Why: why})
		return false
	}
	return true
}

// mostSilent is the connection that has been silent for longest of the sandbox that has most, where those are more than
// bound; else nil. It gives way. Call it with mu held.
func (s *Server) mostSilent(bound int) (c *conn) {
	var of *sandboxState
	for st := range s.having {
		if n := len(st.conns) - st.giving; n > bound {
			of, bound = st, n
		}
	}
	if of == nil {
		return nil
	}
	for other := range of.conns {
		if !other.gives && (c == nil || other.active.Load() < c.active.Load()) {
			c = other
		}
	}
	c.gives = true
	of.giving++
	s.giving++
	return c
}

// giveWay ends a connection for another sandbox's.
func (c *conn) giveWay() { c.end(gaveWay) }

// gaveWay is why a connection ended that gave way.
const gaveWay = "the node has too many connections, and this sandbox more than others"

func (s *Server) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	state := s.state(c.flow.Key)
	delete(state.conns, c)
	if c.gives {
		state.giving--
		s.giving--
	}
	if len(state.conns) == 0 {
		delete(s.having, state)
		s.cfg.Busy(c.flow.Key, false)
	}
}
