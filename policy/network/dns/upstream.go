package dns

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	miekg "github.com/miekg/dns"
)

// upstream asks resolvers.
type upstream struct {
	cfg           Config
	asked, forged atomic.Uint64
	good          atomic.Int64 // the one that answered last
}

// maxForged is how many packets may pretend to be an answer before TCP is tried.
const maxForged = 64

// rounds is how often all upstreams are asked: packets get lost.
const rounds = 3

var errTryTCP = errors.New("ask by TCP")

// ask asks one after the other, several times round, until one answers or ctx ends.
func (u *upstream) ask(ctx context.Context, name string, qtype uint16) (*miekg.Msg, error) {
	failures := make([]error, len(u.cfg.Upstreams)) // the last of each
	for round := range rounds {
		if round > 1 {
			// They answer with failures, or refuse at once: give them a moment.
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
		for i := range u.cfg.Upstreams {
			n := (int(u.good.Load()) + i) % len(u.cfg.Upstreams)
			m, err := u.askOne(ctx, u.cfg.Upstreams[n], name, qtype)
			if err == nil {
				if i > 0 {
					u.good.Store(int64(n))
				}
				return m, nil
			}
			failures[n] = err
			if ctx.Err() != nil {
				return nil, noAnswer(failures)
			}
		}
	}
	return nil, noAnswer(failures)
}

func noAnswer(failures []error) error {
	var texts []string
	for _, err := range failures {
		if err != nil {
			texts = append(texts, err.Error())
		}
	}
	return fmt.Errorf("no upstream resolver answers: %s", strings.Join(texts, "; "))
}

func (u *upstream) askOne(ctx context.Context, to netip.AddrPort, name string, qtype uint16) (*miekg.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, u.cfg.Try)
	defer cancel()
	u.asked.Add(1)
	m, err := u.exchange(ctx, "udp", to, name, qtype)
	if errors.Is(err, errTryTCP) {
		m, err = u.exchange(ctx, "tcp", to, name, qtype)
	}
	if err != nil {
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			return nil, fmt.Errorf("%s is silent", to)
		}
		return nil, fmt.Errorf("%s: %w", to, err)
	}
	if m.Rcode != miekg.RcodeSuccess && m.Rcode != miekg.RcodeNameError {
		return nil, fmt.Errorf("%s says %s", to, miekg.RcodeToString[m.Rcode])
	}
	return m, nil
}

// exchange asks once. By UDP it waits for the packet that matches in all that a forger must guess; errTryTCP says that
// the answer was cut, that none came but for the case of its name, or that many pretended.
func (u *upstream) exchange(ctx context.Context, network string, to netip.AddrPort, name string, qtype uint16) (*miekg.Msg, error) {
	conn, err := u.cfg.Dial(ctx, network, to)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if network == "udp" {
		// Leave half of the time for TCP.
		deadline = time.Now().Add(time.Until(deadline) / 2)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	q, err := question(name, qtype)
	if err != nil {
		return nil, err
	}
	c := &miekg.Conn{Conn: conn, UDPSize: 4096}
	if err := c.WriteMsg(q); err != nil {
		return nil, err
	}
	caseLost, forged := false, 0
	for {
		m, err := c.ReadMsg()
		switch {
		case err != nil && m == nil && !errors.Is(err, miekg.ErrShortRead):
			if network == "udp" && caseLost {
				return nil, errTryTCP
			}
			return nil, err
		case err != nil || !matches(m, q, network):
			u.forged.Add(1)
			if network == "tcp" {
				return nil, errors.New("the answer does not belong to the question")
			}
			caseLost = caseLost || m != nil && m.Id == q.Id && m.Response && len(m.Question) == 1 && strings.EqualFold(m.Question[0].Name, q.Question[0].Name)
			if forged++; forged == maxForged {
				return nil, errTryTCP
			}
			continue
		case m.Truncated && network == "udp":
			return nil, errTryTCP
		}
		return m, nil
	}
}

// matches says whether m answers q. By UDP the case of the name must match too. By TCP it need not: TCP is what remains
// for resolvers that do not keep it, and forging an answer there takes more than guessing.
func matches(m, q *miekg.Msg, network string) bool {
	if m.Id != q.Id || !m.Response || m.Opcode != miekg.OpcodeQuery || len(m.Question) != 1 {
		return false
	}
	a, b := m.Question[0], q.Question[0]
	return a.Qtype == b.Qtype && a.Qclass == b.Qclass && (a.Name == b.Name || network == "tcp" && strings.EqualFold(a.Name, b.Name))
}

// question makes a question with a random id and a random case.
func question(name string, qtype uint16) (*miekg.Msg, error) {
	buf := make([]byte, 2+len(name))
	if _, err := rand.Read(buf); err != nil {
		return nil, err
	}
	mixed := []byte(name)
	for i, c := range mixed {
		if c >= 'a' && c <= 'z' && buf[2+i]&1 == 1 {
			mixed[i] = c - 'a' + 'A'
		}
	}
	m := new(miekg.Msg)
	m.SetQuestion(miekg.Fqdn(string(mixed)), qtype)
	m.Id = binary.BigEndian.Uint16(buf)
	m.SetEdns0(1232, false)
	return m, nil
}
