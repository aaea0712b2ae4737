package record

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// CommandID is the id of the command of this order; OrderOf is its inverse (false = not such an id).
func CommandID(order int64) string { return "c" + strconv.FormatInt(order, 10) }

// OrderOf returns the order that a command's id tells.
func OrderOf(id string) (int64, bool) {
	digits, ok := strings.CutPrefix(id, "c")
	if !ok {
		return 0, false
	}
	order, err := strconv.ParseInt(digits, 10, 64)
	return order, err == nil && order > 0 && CommandID(order) == id
}

// StartCommand records a command before it is started; it fills in its order, id and start time. c.Spec must
// be fit to be kept: without stdin and secrets, and of bounded size.
func (l *Log) StartCommand(c *dsecv1.Command) (*Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wall, _ := l.opt.Clock()
	c.Order = l.lastOrder + 1
	c.Id, c.StartedAt = CommandID(c.Order), timestamppb.New(wall)
	e := &Entry{Body: &Entry_CommandStarted{CommandStarted: c}}
	pos, err := l.append(e)
	if err != nil {
		return nil, err
	}
	l.addCommand(c.Order, c.OperationId, pos)
	return e, nil
}

func (l *Log) addCommand(order int64, op string, pos int64) *command {
	c := &command{order: order, op: op, start: pos}
	l.commands[order] = c
	if op != "" {
		l.ops[op] = order
	}
	l.lastOrder = max(l.lastOrder, order)
	l.live++
	return c
}

// EndCommand records a command's end; it fills in the result's sizes. Of c only id, order, pid, end time and
// result are written. The oldest ended commands beyond the bound are forgotten.
func (l *Log) EndCommand(c *dsecv1.Command) (*Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	cmd := l.commands[c.Order]
	if cmd == nil || cmd.end != 0 {
		return nil, fmt.Errorf("end of command %d: %w", c.Order, ErrUnknownCommand)
	}
	if r := c.Result; r != nil && cmd.out != nil {
		r.OutputBytes = max(r.OutputBytes, cmd.out.end)
		r.OutputCutBytes = r.OutputBytes - cmd.out.kept()
	} else if r != nil {
		r.OutputCutBytes = r.OutputBytes
	}
	ended := &dsecv1.Command{Id: c.Id, Order: c.Order, Pid: c.Pid, EndedAt: c.EndedAt, Result: c.Result}
	if l.opt.Sync && cmd.out != nil && len(cmd.out.segments) > 0 {
		if err := l.syncSegments(cmd); err != nil {
			return nil, err
		}
	}
	e := &Entry{Body: &Entry_CommandEnded{CommandEnded: ended}}
	pos, err := l.append(e)
	if err != nil {
		return nil, err
	}
	if l.spill.order == c.Order {
		l.spill.close()
	}
	l.markEnded(cmd, pos)
	l.forgetBeyond(l.opt.Keep)
	return e, nil
}

func (l *Log) markEnded(c *command, pos int64) {
	c.end = pos
	l.live--
	l.ended = append(l.ended, c.order)
}

func (l *Log) forgetBeyond(keep int) {
	for len(l.ended) > keep {
		l.forget(l.ended[0])
		l.ended = l.ended[1:]
	}
}

func (l *Log) forget(order int64) {
	c := l.commands[order]
	if c == nil {
		return
	}
	l.dropSegments(c)
	delete(l.commands, order)
	if c.op != "" && l.ops[c.op] == order {
		delete(l.ops, c.op)
	}
	l.forgotten++
}

// ReleaseOperation lets an operation id be used again: its command never ran.
func (l *Log) ReleaseOperation(op string, order int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if op != "" && l.ops[op] == order {
		delete(l.ops, op)
	}
}

// Operation finds the command that an operation id started; 0 = none that is kept.
func (l *Log) Operation(op string) int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.ops[op]
}

// Command reads a command back. Error: ErrUnknownCommand.
func (l *Log) Command(order int64) (*dsecv1.Command, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.command(order)
}

func (l *Log) command(order int64) (*dsecv1.Command, error) {
	cmd := l.commands[order]
	if cmd == nil {
		if order > 0 && order <= l.lastOrder {
			return nil, fmt.Errorf("command %s: %w: only the last %d ended ones are kept", CommandID(order), ErrUnknownCommand, l.opt.Keep)
		}
		return nil, fmt.Errorf("command %s: %w: %s", CommandID(order), ErrUnknownCommand, newest(l.lastOrder))
	}
	e, err := l.entryAt(cmd.start)
	if err != nil {
		return nil, err
	}
	c := e.GetCommandStarted()
	if c == nil {
		return nil, fmt.Errorf("command %d: the journal holds something else at %d", order, cmd.start)
	}
	if cmd.end != 0 {
		e, err := l.entryAt(cmd.end)
		if err != nil {
			return nil, err
		}
		end := e.GetCommandEnded()
		c.EndedAt, c.Result, c.Pid = end.GetEndedAt(), end.GetResult(), end.GetPid()
	}
	return c, nil
}

// newest tells who asks for a command that never was which is the last.
func newest(order int64) string {
	if order == 0 {
		return "none was started yet"
	}
	return "the last one is " + CommandID(order)
}

func (l *Log) entryAt(pos int64) (*Entry, error) {
	f, done, err := l.reading()
	if err != nil {
		return nil, err
	}
	defer done()
	s := newScanner(f, pos, l.size)
	defer s.close()
	fr, err := s.next(false)
	if err != nil {
		return nil, fmt.Errorf("read journal at %d: %w", pos, err)
	}
	return fr.entry()
}

// Orders returns the orders of kept commands after the given one, ascending, and how many ended commands are
// no longer kept.
func (l *Log) Orders(after int64) (orders []int64, forgotten int64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for o := range l.commands {
		if o > after {
			orders = append(orders, o)
		}
	}
	slices.Sort(orders)
	return orders, l.forgotten
}

// OutputEnd is the offset after the last recorded byte of a command's output.
func (l *Log) OutputEnd(order int64) int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if c := l.commands[order]; c != nil && c.out != nil {
		return c.out.end
	}
	return 0
}
