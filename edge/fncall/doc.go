// Package fncall serves FnCallService: it turns requests into calls of backend/fncall, and results into messages. Calls of
// a batch wait for their turn inside the batch, so that its bound is the request's size, not the line's.
package fncall
