package edge

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/sandbox"
)

// session is a stateful shell. Its commands run one after another. All fields but the first group are guarded
// by the sandbox's mu.
type session struct {
	b     *box
	id    string
	user  string
	at    time.Time
	group sandbox.Group

	end     *sandbox.Failure // set when it has ended
	current *command
	queue   []waiting
}

// waiting is a command that waits for its turn.
type waiting struct {
	c    *command
	spec *dsecv1.CommandSpec
}

const maxSessionID = 64

// openSession opens a session.
func (b *box) openSession(ctx context.Context, req *dsecv1.CreateSessionRequest) (*session, error) {
	id := req.SessionId
	if id == "" {
		id = "s" + strings.ToLower(rand.Text()[:12])
	}
	if err := checkSessionID(id); err != nil {
		return nil, err
	}
	if err := checkUserAndDir(req.User, req.Cwd); err != nil {
		return nil, err
	}
	env, err := mergeEnv(nil, req.Env)
	if err != nil {
		return nil, err
	}
	s := &session{b: b, id: id, user: req.User, at: b.e.cfg.Clock.Wall()}
	if err := b.addSession(s); err != nil {
		return nil, err
	}
	open := &wire.OpenSession{ID: id, User: req.User, Cwd: req.Cwd, Env: env}
	if err := b.running(ctx, func() error { return s.open(ctx, open) }); err != nil {
		b.mu.Lock()
		delete(b.sessions, id)
		b.mu.Unlock()
		return nil, err
	}
	return s, nil
}

func checkSessionID(id string) error {
	for _, c := range id {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return invalid("session id %.64q: want lower-case letters, digits and '-'", id)
		}
	}
	if len(id) > maxSessionID {
		return invalid("session id of %d bytes: want at most %d", len(id), maxSessionID)
	}
	return nil
}

// addSession takes the id. Ended sessions make room for new ones.
func (b *box) addSession(s *session) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old := b.sessions[s.id]; old != nil && old.end == nil {
		return fmt.Errorf("session %s: %w", s.id, sandbox.ErrAlreadyExists)
	}
	live := 0
	for id, old := range b.sessions {
		if old.end == nil {
			live++
		} else if len(b.sessions) >= 2*b.e.cfg.MaxSessions {
			delete(b.sessions, id)
		}
	}
	if live >= b.e.cfg.MaxSessions {
		return fmt.Errorf("sandbox %s: %w: %d sessions are open, at most %d may; close some first", b.id, sandbox.ErrExhausted, live, b.e.cfg.MaxSessions)
	}
	if b.sessions == nil {
		b.sessions = map[string]*session{}
	}
	b.sessions[s.id] = s
	return nil
}

func (s *session) open(ctx context.Context, req *wire.OpenSession) error {
	conn, inst, err := s.b.channel()
	if err != nil {
		return err
	}
	var files []*os.File
	if s.b.backend.Capabilities().CommandGroup {
		g, err := inst.Group(ctx, s.groupName())
		if err != nil {
			return fmt.Errorf("make the session's control group: %w", err)
		}
		s.group, files = g, g.Files()
		defer g.CloseFiles()
	}
	if err = conn.OpenSession(ctx, req, files); err == nil {
		s.b.mu.Lock()
		err = s.b.append(&record.Entry{Body: &record.Entry_SessionOpened{SessionOpened: s.proto()}})
		s.b.mu.Unlock()
	}
	if err != nil && s.group != nil {
		_ = s.group.Remove()
	}
	return err
}

func (s *session) groupName() string { return "session-" + s.id }

// proto is the session as the API shows it. The sandbox's mu is held.
func (s *session) proto() *dsecv1.Session {
	return &dsecv1.Session{Id: s.id, User: s.user, CreatedAt: stamp(s.at), Ended: s.end != nil, End: failureProto(s.end)}
}

// admits tells whether one more command may wait. The sandbox's mu is held.
func (s *session) admits(most int) error {
	if s.end != nil {
		return fmt.Errorf("session %s has ended (%w): %w", s.id, s.end, sandbox.ErrFailedPrecondition)
	}
	if len(s.queue) >= most {
		return fmt.Errorf("session %s: %w: %d commands are waiting, at most %d may", s.id, sandbox.ErrExhausted, len(s.queue), most)
	}
	return nil
}

// enqueue makes the command the session's current one if it is free. The sandbox's mu is held.
func (s *session) enqueue(c *command) (first bool) {
	if s.current != nil || len(s.queue) > 0 {
		s.queue = append(s.queue, waiting{c: c})
		return false
	}
	s.current = c
	return true
}

// waitTurn gives a waiting command what it will be started with.
func (s *session) waitTurn(c *command, spec *dsecv1.CommandSpec) {
	s.b.mu.Lock()
	for i := range s.queue {
		if s.queue[i].c == c {
			s.queue[i].spec = spec
		}
	}
	s.b.mu.Unlock()
	s.advance()
}

// next is told that a command has ended; the one after it starts.
func (s *session) next(c *command) {
	s.b.mu.Lock()
	last := s.current == c
	if last {
		s.current = nil
	}
	last = last && s.end != nil
	s.queue = slices.DeleteFunc(s.queue, func(w waiting) bool { return w.c == c })
	s.b.mu.Unlock()
	if last {
		s.b.e.spawn(s.clear)
	}
	s.advance()
}

// advance starts the first waiting command if its turn has come, or ends all of them with the session.
func (s *session) advance() {
	s.b.mu.Lock()
	if s.current != nil && s.end == nil || len(s.queue) == 0 || s.end == nil && s.queue[0].spec == nil {
		s.b.mu.Unlock()
		return
	}
	if s.end != nil {
		queue := s.queue
		s.queue = nil
		s.b.mu.Unlock()
		for _, w := range queue {
			s.b.endWith(w.c, sandbox.NewFailure(sandbox.KindCannotStart, "its session ended before its turn came"), 126, 0)
		}
		return
	}
	w := s.queue[0]
	s.queue, s.current = s.queue[1:], w.c
	s.b.mu.Unlock()
	s.b.e.spawn(func() { w.c.start(context.Background(), w.spec) })
}

// closeSession ends the shell and its whole tree. Idempotent.
func (b *box) closeSession(ctx context.Context, id string) error {
	b.mu.Lock()
	s := b.sessions[id]
	b.mu.Unlock()
	if s == nil {
		return fmt.Errorf("session %.64q: %w", id, sandbox.ErrNotFound)
	}
	conn, _, err := b.channel()
	if err != nil {
		return err
	}
	var guest *wire.Error
	if err := conn.CloseSession(ctx, id); err != nil && !(errors.As(err, &guest) && (guest.Code == wire.CodeNotFound || guest.Code == wire.CodeSessionEnded)) {
		return err
	}
	s.finish(sandbox.NewFailure(sandbox.KindStopped, "it was closed by request"))
	return nil
}

// shellEnded is called when the shell ended by itself.
func (s *session) shellEnded() {
	s.finish(sandbox.NewFailure(sandbox.KindExited, "its shell has ended"))
}

// finish records the session's end, once, and takes its tree along, as soon as the command that runs in it
// has ended.
func (s *session) finish(f *sandbox.Failure) {
	b := s.b
	b.mu.Lock()
	if s.end != nil {
		b.mu.Unlock()
		return
	}
	s.end = f
	if err := b.append(&record.Entry{Body: &record.Entry_SessionEnded{SessionEnded: s.proto()}}); err != nil {
		b.e.log.Error("record a session's end", "sandbox", b.id, "session", s.id, "err", err)
	}
	idle := s.current == nil
	b.mu.Unlock()
	if idle {
		b.e.spawn(s.clear)
	}
	s.advance()
}

// clear removes what is left of an ended session.
func (s *session) clear() {
	s.forget()
	if s.group == nil {
		return
	}
	if err := s.group.Remove(); err != nil {
		s.b.e.log.Debug("remove a session's control group", "sandbox", s.b.id, "session", s.id, "err", err)
	}
}

// forget lets dsec-init forget the ended session.
func (s *session) forget() {
	conn, _, err := s.b.channel()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.b.e.cfg.StartTimeout)
	defer cancel()
	var guest *wire.Error
	if err := conn.CloseSession(ctx, s.id); err != nil && !errors.As(err, &guest) {
		s.b.e.log.Debug("close a session", "sandbox", s.b.id, "session", s.id, "err", err)
	}
}

// endSessions ends all sessions with the sandbox. b.mu is held.
func (b *box) endSessions(f *sandbox.Failure) {
	for _, s := range b.sessions {
		if s.end == nil {
			s.end = f
		}
	}
}
