// Package lazy tests whole nodes whose layers are read on demand: from an S3 service that is stopped, slowed and
// damaged, by a blobd that is killed.
package lazy
