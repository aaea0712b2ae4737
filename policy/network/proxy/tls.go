package proxy

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"sync"
	"time"
)

// runTLS checks the hello's name, and splices.
func (c *conn) runTLS(ctx context.Context) error {
	h, err := readHello(c.client.br)
	if err == nil {
		err = c.checkHello(h)
	} else {
		err = refuse("no TLS hello: %v", plain(err))
	}
	if err != nil {
		c.denyTLS()
		return err
	}
	if err := c.dial(ctx); err != nil {
		return err
	}
	if err := c.send(h.raw); err != nil {
		c.endForth(err)
		return nil
	}
	return c.afterHello(h.name)
}

func (c *conn) checkHello(h *hello) error {
	switch {
	case h.name == "":
		return refuse("TLS without a server name (SNI)")
	case addrName(h.name):
		return refuse("the TLS server name is an address")
	case h.ech && !c.s.cfg.AllowECH:
		return refuse("an encrypted TLS hello hides the name (outer name %s)", h.name)
	}
	return c.admit(h.name)
}

// denyTLS sends the alert "access denied".
func (c *conn) denyTLS() {
	c.sayAndClose([]byte{recordAlert, 3, 3, 0, 2, 2, 49})
}

// sayAndClose sends a last word.
func (c *conn) sayAndClose(b []byte) {
	nc := c.client.conn
	_ = nc.SetDeadline(time.Now().Add(time.Second))
	if _, err := nc.Write(b); err == nil && c.client.closeWrite() == nil {
		c.drain()
	}
	nc.Close()
}

// helloRetry is the random of a server hello that asks for a second client hello.
var helloRetry = func() []byte {
	b, err := hex.DecodeString("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
	if err != nil {
		panic(err)
	}
	return b
}()

// afterHello splices once it is sure that no second hello with another name can follow. Until the server has answered,
// nothing more of the client is passed on: it has nothing to say that the server would wait for.
func (c *conn) afterHello(name string) error {
	_ = c.server.conn.SetReadDeadline(time.Now().Add(c.s.cfg.HelloTimeout))
	retry, err := c.retryAsked()
	if err != nil {
		c.endForth(err)
		return nil
	}
	if !retry {
		return c.splice()
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.back() })
	err = c.secondHello(name)
	if err == nil {
		err = c.pump(c.server, c.client, -1, &c.sent)
		c.endForth(err)
		err = nil
	} else {
		c.client.reset()
		c.server.reset()
	}
	wg.Wait()
	return err
}

// retryAsked looks at the server's first record, without taking it.
func (c *conn) retryAsked() (bool, error) {
	header, err := c.server.br.Peek(headerLen)
	if len(header) < headerLen && errors.Is(err, io.EOF) {
		return false, nil // it closes; splicing passes that on
	}
	if err != nil {
		return false, err
	}
	if header[0] != recordHandshake {
		return false, nil
	}
	size := int(header[3])<<8 | int(header[4])
	const randomAt = 4 + 2 // in the message: type, length, version
	if size < randomAt+len(helloRetry) {
		return false, errors.New("the server's hello is in pieces too small to read")
	}
	record, err := c.server.br.Peek(headerLen + randomAt + len(helloRetry))
	if err != nil {
		return false, err
	}
	message := record[headerLen:]
	return message[0] == messageServerHello && bytes.Equal(message[randomAt:], helloRetry), nil
}

// maxBetween is how many records may come between the two hellos: a change of cipher for show, early data.
const maxBetween = 1024

// secondHello passes on what comes before the second hello, and that hello if it has the same name.
func (c *conn) secondHello(name string) error {
	_ = c.client.conn.SetReadDeadline(time.Now().Add(c.s.cfg.HelloTimeout))
	for range maxBetween {
		kind, err := c.client.br.Peek(1)
		if err != nil {
			return err
		}
		switch kind[0] {
		case recordHandshake:
			h, err := readHello(c.client.br)
			if err != nil {
				return refuse("no second TLS hello: %v", plain(err))
			}
			if h.name != name || h.ech && !c.s.cfg.AllowECH {
				return refuse("the second TLS hello has another name: %q after %q", h.name, name)
			}
			return c.send(h.raw)
		case recordAlert:
			return nil // the client gives up
		case recordCipherChange, recordData:
			header := make([]byte, headerLen)
			if _, err := io.ReadFull(c.client.br, header); err != nil {
				return err
			}
			body := make([]byte, int(header[3])<<8|int(header[4]))
			if _, err := io.ReadFull(c.client.br, body); err != nil {
				return err
			}
			if err := c.send(append(header, body...)); err != nil {
				return err
			}
		default:
			return refuse("malformed TLS after a second hello was asked for")
		}
	}
	return refuse("no second TLS hello")
}
