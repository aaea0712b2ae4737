package main

import (
	"log/slog"
	"time"

	"github.com/opendsec/dsec/cluster/apiserver"
	"github.com/opendsec/dsec/environment"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// cataloguePrefix is where the catalogue of layers lies in the engine.
const cataloguePrefix = "/dsec/catalogue/"

// newCatalogue gives the API server the catalogue of layers.
func newCatalogue(etcd *clientv3.Client, log *slog.Logger) *apiserver.ResolveCache {
	c := environment.New(environment.NewEtcd(etcd, cataloguePrefix), time.Now)
	return apiserver.NewResolveCache(c, etcd, cataloguePrefix, log)
}
