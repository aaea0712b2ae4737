package apiserver

import (
	"cmp"
	"context"
	"fmt"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/cluster/iam"
	"github.com/opendsec/dsec/cluster/netrules"
	"github.com/opendsec/dsec/sandbox"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// keyService implements KeyService.
type keyService struct{ s *Server }

func (k keyService) CreateKey(ctx context.Context, r *dsecv1.CreateKeyRequest) (*dsecv1.CreateKeyResponse, error) {
	// A key of another project would be under another ceiling: that is for whoever owns the node.
	project := projectOf(ctx)
	if r.GetProject() != "" && r.GetProject() != project {
		return nil, connectError(fmt.Errorf("make a key of project %.64q with one of project %s: %w: on the node itself, `dsec key create --state DIRECTORY --project NAME` makes it",
			r.GetProject(), project, sandbox.ErrPermission))
	}
	key, secret, err := k.s.o.Keys.CreateIn(ctx, keyOf(ctx).Project, r.GetName(), iam.Format(r.GetFormat()))
	if err != nil {
		return nil, connectError(err)
	}
	k.s.o.Log.Info("key made", "id", key.ID, "name", key.Name, "by", keyOf(ctx).ID)
	return &dsecv1.CreateKeyResponse{Key: wireKey(key), Secret: secret}, nil
}

func (k keyService) ListKeys(ctx context.Context, _ *dsecv1.ListKeysRequest) (*dsecv1.ListKeysResponse, error) {
	keys, err := k.s.o.Keys.List(ctx)
	if err != nil {
		return nil, connectError(err)
	}
	resp := &dsecv1.ListKeysResponse{}
	for _, key := range keys {
		resp.Keys = append(resp.Keys, wireKey(key))
	}
	return resp, nil
}

func (k keyService) RevokeKey(ctx context.Context, r *dsecv1.RevokeKeyRequest) (*dsecv1.RevokeKeyResponse, error) {
	key, err := k.s.o.Keys.Revoke(ctx, r.GetId())
	if err != nil {
		return nil, connectError(err)
	}
	k.s.o.Log.Info("key revoked", "id", key.ID, "name", key.Name, "by", keyOf(ctx).ID)
	return &dsecv1.RevokeKeyResponse{Key: wireKey(key)}, nil
}

func wireKey(k iam.Key) *dsecv1.Key {
	out := &dsecv1.Key{Id: k.ID, Name: k.Name, Format: string(k.Format), CreatedAt: timestamppb.New(k.CreatedAt), Project: cmp.Or(k.Project, netrules.DefaultProject)}
	if !k.RevokedAt.Equal(time.Time{}) {
		out.RevokedAt = timestamppb.New(k.RevokedAt)
	}
	return out
}
