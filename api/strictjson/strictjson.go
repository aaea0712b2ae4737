package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Option makes a handler's JSON strict, with and without a charset in its content type.
func Option() connect.HandlerOption {
	return connect.WithHandlerOptions(connect.WithCodec(codec("json")), connect.WithCodec(codec("json; charset=utf-8")))
}

// codec implements connect.Codec; it is its name.
type codec string

func (c codec) Name() string { return string(c) }

func (c codec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

func (codec) MarshalAppend(b []byte, m any) ([]byte, error) {
	p, err := message(m)
	if err != nil {
		return nil, err
	}
	return protojson.MarshalOptions{}.MarshalAppend(b, p)
}

// MarshalStable always spaces the same; protojson varies that on purpose.
func (c codec) MarshalStable(m any) ([]byte, error) {
	b, err := c.Marshal(m)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = json.Compact(&out, b)
	return out.Bytes(), err
}

func (codec) IsBinary() bool { return false }

func (codec) Unmarshal(b []byte, m any) error {
	p, err := message(m)
	if err != nil {
		return err
	}
	if len(b) == 0 {
		return errors.New("the request is empty: want a JSON object, {} at least")
	}
	if err := (protojson.UnmarshalOptions{}).Unmarshal(b, p); err != nil {
		return fmt.Errorf("%s: %s", p.ProtoReflect().Descriptor().Name(), text(err))
	}
	return nil
}

// text is protojson's message without its prefix, whose space varies on purpose.
func text(err error) string {
	return strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
}

func message(m any) (proto.Message, error) {
	p, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no protobuf message", m)
	}
	return p, nil
}
