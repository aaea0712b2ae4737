// Package importer is the service that makes layers: it pulls images and takes uploads, converts them, and
// publishes the results in a store. It knows contents; names and versions belong to the catalogue, whose
// owner calls it (the role blobd serves it on a Unix socket to the API server).
//
// It speaks the import half of LayerService (api/dsec/v1/layer.proto) over Connect, and PUT /v1/layers over
// plain HTTP. All work is done in a stage of the store, which goes when the import ends, however it ends.
package importer
