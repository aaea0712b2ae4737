package environment

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/opendsec/dsec/sandbox"
)

// Etcd is a KV in etcd.
type Etcd struct {
	client *clientv3.Client
	prefix string
}

// etcdTimeout bounds one operation.
const etcdTimeout = 10 * time.Second

// NewEtcd uses the keys that begin with prefix.
func NewEtcd(client *clientv3.Client, prefix string) *Etcd { return &Etcd{client, prefix} }

// do runs one operation with its deadline, and gives its error the kind.
func (e *Etcd) do(ctx context.Context, what string, f func(ctx context.Context) error) error {
	inner, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	err := f(inner)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	return fmt.Errorf("%s: %w: the engine (etcd) does not answer: %w", what, sandbox.ErrUnavailable, err)
}

// Get implements KV.
func (e *Etcd) Get(ctx context.Context, keys ...string) ([]Entry, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	ops := make([]clientv3.Op, len(keys))
	for n, k := range keys {
		ops[n] = clientv3.OpGet(e.prefix + k)
	}
	out := make([]Entry, len(keys))
	err := e.do(ctx, "read catalogue", func(ctx context.Context) error {
		resp, err := e.client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return err
		}
		for n, r := range resp.Responses {
			out[n].Key = keys[n]
			if kvs := r.GetResponseRange().Kvs; len(kvs) > 0 {
				out[n].Value, out[n].Revision = kvs[0].Value, kvs[0].ModRevision
			}
		}
		return nil
	})
	return out, err
}

// listPage bounds how much one answer holds.
const listPage = 500

// List implements KV.
func (e *Etcd) List(ctx context.Context, prefix string) ([]Entry, error) {
	var out []Entry
	err := e.pages(ctx, prefix, nil, func(x Entry) bool { out = append(out, x); return true })
	return out, err
}

// Keys implements KV.
func (e *Etcd) Keys(ctx context.Context, prefix string, limit int) ([]string, error) {
	var out []string
	if limit <= 0 {
		return nil, nil
	}
	err := e.pages(ctx, prefix, []clientv3.OpOption{clientv3.WithKeysOnly()}, func(x Entry) bool {
		out = append(out, x.Key)
		return len(out) < limit
	})
	return out, err
}

// pages visits entries page by page until visit says no. All pages are of the moment of the first.
func (e *Etcd) pages(ctx context.Context, prefix string, opts []clientv3.OpOption, visit func(Entry) bool) error {
	from, end, rev := e.prefix+prefix, clientv3.GetPrefixRangeEnd(e.prefix+prefix), int64(0)
	for {
		var resp *clientv3.GetResponse
		err := e.do(ctx, "list catalogue", func(ctx context.Context) (err error) {
			o := append([]clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(listPage), clientv3.WithRev(rev)}, opts...)
			resp, err = e.client.Get(ctx, from, o...)
			return err
		})
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			if !visit(Entry{Key: string(kv.Key)[len(e.prefix):], Value: kv.Value, Revision: kv.ModRevision}) {
				return nil
			}
		}
		if !resp.More {
			return nil
		}
		rev = resp.Header.Revision
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// Put implements KV.
func (e *Etcd) Put(ctx context.Context, key string, value []byte, revision int64) error {
	return e.swap(ctx, "write catalogue", key, revision, clientv3.OpPut(e.prefix+key, string(value)))
}

// Delete implements KV.
func (e *Etcd) Delete(ctx context.Context, key string, revision int64) error {
	return e.swap(ctx, "delete from catalogue", key, revision, clientv3.OpDelete(e.prefix+key))
}

func (e *Etcd) swap(ctx context.Context, what, key string, revision int64, op clientv3.Op) error {
	swapped := false
	err := e.do(ctx, what, func(ctx context.Context) error {
		resp, err := e.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(e.prefix+key), "=", revision)).Then(op).Commit()
		if err == nil {
			swapped = resp.Succeeded
		}
		return err
	})
	if err == nil && !swapped {
		err = conflict(key)
	}
	return err
}
