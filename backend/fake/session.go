package fake

import (
	"maps"
	"strings"

	"github.com/opendsec/dsec/guest/wire"
)

// shellState is what a session keeps from command to command.
type shellState struct {
	cwd   string
	env   map[string]string
	user  string
	ended bool
}

func (m *Machine) baseEnv() map[string]string {
	env := map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/root"}
	addEnv(env, m.spec.Env)
	return env
}

func addEnv(env map[string]string, list []string) {
	for _, kv := range list {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env[k] = v
		}
	}
}

// stateFor finds or makes what a command runs in.
func (m *Machine) stateFor(req *wire.Start) (*shellState, map[string]string, *wire.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if req.Session != "" {
		s := m.sessions[req.Session]
		switch {
		case s == nil:
			return nil, nil, refuse(wire.CodeNotFound, "no session "+req.Session)
		case s.ended:
			return nil, nil, refuse(wire.CodeSessionEnded, "the session's shell has ended; open a new session")
		}
		return s, s.env, nil
	}
	s, err := m.newState(req.User, req.Cwd)
	if err != nil {
		return nil, nil, err
	}
	addEnv(s.env, req.Env)
	return s, s.env, nil
}

// newState makes a fresh state. m.mu is held.
func (m *Machine) newState(user, cwd string) (*shellState, *wire.Error) {
	if user == "" {
		user = m.spec.User
	}
	switch user {
	case "", "root", "0":
		user = "root"
	case "nobody", "65534":
		user = "nobody"
	default:
		return nil, refuse(wire.CodeNoUser, "no user "+user)
	}
	if cwd == "" {
		cwd = m.spec.Workdir
	}
	if cwd == "" {
		cwd = "/root"
	}
	if n := m.files.find(cwd); n == nil || !n.dir {
		return nil, refuse(wire.CodeNoCwd, "no directory "+cwd)
	}
	return &shellState{cwd: cwd, env: m.baseEnv(), user: user}, nil
}

func (m *Machine) openSession(req *wire.OpenSession) *wire.Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sessions[req.ID] != nil {
		return refuse(wire.CodeExists, "a session of this id exists")
	}
	s, err := m.newState(req.User, req.Cwd)
	if err != nil {
		return err
	}
	s.env = maps.Clone(s.env)
	addEnv(s.env, req.Env)
	m.sessions[req.ID] = s
	return nil
}

func (m *Machine) closeSession(id string) *wire.Error {
	m.mu.Lock()
	s := m.sessions[id]
	if s == nil {
		m.mu.Unlock()
		return refuse(wire.CodeNotFound, "no session "+id)
	}
	delete(m.sessions, id)
	var running []*process
	for _, c := range m.commands {
		if c.session == id {
			running = append(running, c)
		}
	}
	m.mu.Unlock()
	for _, c := range running {
		c.kill(9, false)
	}
	return nil
}

// sessionEnded tells that a session's shell has ended.
func (m *Machine) sessionEnded(id string, x wire.Exit) {
	m.mu.Lock()
	s, p := m.sessions[id], m.peer
	if s != nil {
		s.ended = true
	}
	m.mu.Unlock()
	if s != nil && p != nil {
		p.send(wire.KindSessionEnded, 0, (&wire.Exited{Name: id, Exit: x}).Append)
	}
}
