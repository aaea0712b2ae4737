// Package staging gives stores private directories for what is being made. Their locks tell the living from the
// dead, so that what a killed process left goes when the next one opens the area.
//
//	<id>/       what is being made
//	<id>.lock   held by its maker
package staging
